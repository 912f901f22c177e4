// The kernel template. Each file of a family instantiates it.
#pragma once

#include <cstdint>

#include "cuda/kernels.h"
#include "cuda/plan.h"
#include "cuda/select.h"
#include "cuda/work.h"

namespace collectives {
namespace {

// The bounds allow a thread 128 registers at most.
template <class Element, class Operation, class Order>
__global__ void __launch_bounds__(kThreads, 8) reduce_kernel(const __grid_constant__ typename Order::Plan plan) {
  work<Element, Operation, Order>(plan, std::int64_t{blockIdx.x} * kThreads + threadIdx.x);
}

struct Kernels {
  using Entry = const void*;
  template <class Element, class Operation, class Order>
  static Entry of() {
    return reinterpret_cast<const void*>(&reduce_kernel<Element, Operation, Order>);
  }
};

}  // namespace
}  // namespace collectives
