// The collectives of torch.distributed's gloo as C functions, which bench/peers/gloo.py compiles, and calls in ranks.
//
// They go to the backend itself, past torch's dispatcher: it is gloo that is measured.

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace {

using Tensors = std::vector<at::Tensor>;

c10::intrusive_ptr<c10d::Backend> backend;

// What was thrown must not leave C functions.
template <typename Function>
int guarded(const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo: %s\n", error.what());
    return 1;
  }
}

}  // namespace

extern "C" {

// Takes the process group of that name, which Python has made.
int gloo_connect(const char* name) {
  return guarded([&] { backend = c10d::resolve_process_group(name)->getBackend(c10::DeviceType::CPU); });
}

// What the functions below take for the array at `data`, with torch's number of its type; or null.
Tensors* gloo_tensors(void* data, std::int64_t count, int dtype) {
  Tensors* made = nullptr;
  guarded(
      [&] { made = new Tensors{at::from_blob(data, {count}, at::TensorOptions(static_cast<at::ScalarType>(dtype)))}; });
  return made;
}

int gloo_all_reduce(Tensors* x, int op) {
  return guarded([&] {
    c10d::AllreduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    backend->allreduce(*x, options)->wait();
  });
}

int gloo_broadcast(Tensors* x) {
  return guarded([&] { backend->broadcast(*x)->wait(); });
}

int gloo_reduce(Tensors* x, int op) {
  return guarded([&] {
    c10d::ReduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    backend->reduce(*x, options)->wait();
  });
}

int gloo_all_gather(Tensors* x, Tensors* out) {
  return guarded([&] { backend->_allgather_base(out->front(), x->front())->wait(); });
}

int gloo_reduce_scatter(Tensors* x, Tensors* out, int op) {
  return guarded([&] {
    c10d::ReduceScatterOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    backend->_reduce_scatter_base(out->front(), x->front(), options)->wait();
  });
}

int gloo_all_to_all(Tensors* x, Tensors* out) {
  return guarded([&] {
    std::vector<std::int64_t> equal;
    backend->alltoall_base(out->front(), x->front(), equal, equal)->wait();
  });
}

int gloo_barrier() {
  return guarded([] { backend->barrier()->wait(); });
}

}  // extern "C"
