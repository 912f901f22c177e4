// The kernels for GPUs, run on the host: all of them but the launch. tests/cuda/test_cuda_kernels.py compiles this with
// the compiler of the host and loads it.
#include <cstdint>

#include "cuda/elements.h"
#include "cuda/plan.h"
#include "cuda/select.h"
#include "cuda/work.h"

namespace collectives {
namespace {

struct Functions {
  using Entry = void (*)(const void* plan, std::int64_t thread);
  template <class Element, class Operation, class Order>
  static Entry of() {
    return [](const void* plan, std::int64_t thread) {
      work<Element, Operation, Order>(*static_cast<const typename Order::Plan*>(plan), thread);
    };
  }
};

Functions::Entry function_of(const Choice& choice) {
  switch (choice.family) {
    case Family::kHalves:
      return select_halves<Functions>(choice);
    case Family::kFloats:
      return select_floats<Functions>(choice);
    case Family::kFloat8:
      return select_float8<Functions>(choice);
    case Family::kIntegers:
      return select_integers<Functions>(choice);
    case Family::kBits:
      return select_bits<Functions>(choice);
  }
  return nullptr;
}

template <class Element>
void decode(const void* from, float* to, std::int64_t count) {
  const auto* codes = static_cast<const typename Element::Stored*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i] = Element::decode(codes[i]);
}

template <class Element>
void encode(const float* from, void* to, std::int64_t count) {
  auto* codes = static_cast<typename Element::Stored*>(to);
  for (std::int64_t i = 0; i < count; ++i) codes[i] = Element::encode(from[i]);
}

template <class Visit>
void with_element(int dtype, Visit&& visit) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat8E4M3FN:
      return visit(Float8<E4M3FN>{});
    case DType::kFloat8E5M2:
      return visit(Float8<E5M2>{});
    default:
      return;
  }
}

}  // namespace
}  // namespace collectives

using namespace collectives;  // NOLINT: this is a program of its own

// 0: done. 1: no reduction. 2: there is no kernel. idle: threads too many, as the last block of a grid has. *order:
// which kind of kernel did it; *packs: how much by packs.
extern "C" int reduce_on_host(const DeviceReduction* reduction, std::int64_t idle, int* order, std::int64_t* packs) {
  Choice choice;
  AnyPlan plan;
  if (!make_plan(*reduction, choice, plan)) return 1;
  const auto function = function_of(choice);
  if (function == nullptr) return 2;
  const bool fixed = is_fixed(choice.order);
  const auto few = fixed ? shortened(plan) : LaunchPlan<kMostFixedOperands>{};
  *order = static_cast<int>(choice.order);
  *packs = plan.packs;
  for (std::int64_t thread = 0; thread < plan.packs + plan.loose + idle; ++thread) {
    function(fixed ? static_cast<const void*>(&few) : &plan, thread);
  }
  return 0;
}

extern "C" int has_kernel_on_device(int op, int dtype) {
  return static_cast<int>(has_device_kernel(static_cast<Op>(op), static_cast<DType>(dtype)));
}

extern "C" void decode_elements(int dtype, const void* from, float* to, std::int64_t count) {
  with_element(dtype, [&](auto element) { decode<decltype(element)>(from, to, count); });
}

extern "C" void encode_elements(int dtype, const float* from, void* to, std::int64_t count) {
  with_element(dtype, [&](auto element) { encode<decltype(element)>(from, to, count); });
}
