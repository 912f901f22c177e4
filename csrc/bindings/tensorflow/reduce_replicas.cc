// CollectivesReduceReplicas: reduces tensors of the replicas of this process, all tensors of a call in one pass over
// memory. Input k * n + r is tensor k of replica r, output k the result.

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/tensorflow/kernel.h"
#include "core/error.h"
#include "replicas/replicas.h"

namespace collectives::tensorflow {
namespace {

constexpr const char* kOpName = "CollectivesReduceReplicas";

class ReduceReplicas {
 public:
  explicit ReduceReplicas(TfConstruction* construction)
      : replicas_(static_cast<int>(integer_attribute(construction, "replicas"))),
        packs_(static_cast<int>(integer_attribute(construction, "packs"))),
        op_(parse_op(string_attribute(construction, "op"))),
        combination_(parse_combination(string_attribute(construction, "combination"))),
        names_(strings_attribute(construction, "names")) {}

  void compute(TfContext* context) const {
    const int tensors = api().TF_NumOutputs(context);
    const auto n = static_cast<std::size_t>(replicas_);
    if (static_cast<std::size_t>(api().TF_NumInputs(context)) != n * tensors) {
      throw ArgumentError(std::to_string(api().TF_NumInputs(context)) + " inputs are not " + std::to_string(tensors) +
                          " tensors of " + std::to_string(replicas_) + " replicas");
    }
    std::vector<Tensor> outputs;
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    std::vector<ReplicaTensor> requests(tensors);
    for (int k = 0; k < tensors; ++k) {
      const std::vector<std::int64_t> shape = describe(context, k, requests[k], sources);
      outputs.push_back(forward_or_allocate(context, inputs_of(k), k, shape));
      destinations.push_back(span_of(outputs.back().get()).data);
    }
    for (int k = 0; k < tensors; ++k) {
      requests[k].sources = {sources.data() + k * n, n};
      requests[k].destinations = {destinations.data() + k, 1};
    }
    reduce_replicas(combination_, packs_, requests);
  }

 private:
  std::vector<int> inputs_of(int k) const {
    std::vector<int> indices(replicas_);
    std::iota(indices.begin(), indices.end(), k * replicas_);
    return indices;
  }

  // Fills the request for tensor k and appends the addresses of its values, which TensorFlow keeps alive during the
  // call. Returns the shape.
  std::vector<std::int64_t> describe(TfContext* context, int k, ReplicaTensor& request,
                                     std::vector<const void*>& sources) const {
    std::vector<std::int64_t> shape;
    for (const int index : inputs_of(k)) {
      const Tensor value = input(context, index);
      const Span span = span_of(value.get());
      const DType dtype = dtype_of(value.get(), tensor_name(names_, k));
      std::vector<std::int64_t> own = shape_of(value.get());
      const int replica = index - k * replicas_;
      if (replica == 0) {
        request.op = op_;
        request.dtype = dtype;
        request.count = span.bytes / static_cast<std::int64_t>(size_of(dtype));
        shape = std::move(own);
      } else if (own != shape || dtype != request.dtype) {
        throw ArgumentError(tensor_name(names_, k) + " differs in shape or type between replica 0 and replica " +
                            std::to_string(replica) + "; all replicas must give the same");
      }
      sources.push_back(span.data);
    }
    return shape;
  }

  int replicas_;
  int packs_;
  Op op_;
  Combination combination_;
  std::vector<std::string> names_;
};

}  // namespace

void register_reduce_replicas() {
  register_op({kOpName,
               {"T: list(type) >= 1", "R: list(type) >= 1", "replicas: int >= 1", "packs: int >= 1", "op: string",
                "combination: string", "names: list(string) = []"},
               {"values: T"},
               {"results: R"}});
  register_kernel(kOpName, api().TF_NewKernelBuilder(kOpName, "CPU", create_kernel<ReduceReplicas>,
                                                     run_kernel<ReduceReplicas>, destroy_kernel<ReduceReplicas>));
}

}  // namespace collectives::tensorflow
