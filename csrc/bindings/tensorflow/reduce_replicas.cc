// CollectivesReduceReplicas: reduces tensors of the replicas of this process, all tensors of a call in one pass over
// memory. Input k * n + r is tensor k of replica r, output k the result.

#include <string>
#include <vector>

#include "bindings/tensorflow/kernel.h"
#include "core/error.h"
#include "runtime/replicas.h"

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
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
    std::vector<const void*> sources;
    std::vector<void*> destinations;
    std::vector<ReplicaTensor> requests(tensors);
    for (int k = 0; k < tensors; ++k) {
      for (int r = 0; r < replicas_; ++r) {
        inputs.push_back(input(context, k * replicas_ + r));
        sources.push_back(span_of(inputs.back().get()).data);
      }
      outputs.push_back(allocate(context, k, inputs));
      destinations.push_back(span_of(outputs.back().get()).data);
      const TfTensor* const first = inputs[k * n].get();
      requests[k].op = op_;
      requests[k].dtype = dtype_of(first, name(k));
      requests[k].count = span_of(first).bytes / static_cast<std::int64_t>(size_of(requests[k].dtype));
    }
    for (int k = 0; k < tensors; ++k) {
      requests[k].sources = {sources.data() + k * n, n};
      requests[k].destinations = {destinations.data() + k, 1};
    }
    reduce_replicas(combination_, packs_, requests);
  }

 private:
  std::string name(int k) const {
    return static_cast<std::size_t>(k) < names_.size() ? "tensor '" + names_[k] + "'" : "tensor " + std::to_string(k);
  }

  // The output of tensor k, whose inputs are the last of `inputs`.
  Tensor allocate(TfContext* context, int k, const std::vector<Tensor>& inputs) const {
    const auto begin = inputs.end() - replicas_;
    const std::vector<std::int64_t> shape = shape_of(begin->get());
    for (int r = 1; r < replicas_; ++r) {
      if (shape_of(begin[r].get()) != shape ||
          api().TF_TensorType(begin[r].get()) != api().TF_TensorType(begin->get())) {
        throw ArgumentError(name(k) + " differs in shape or type between replica 0 and replica " + std::to_string(r) +
                            "; all replicas must give the same");
      }
    }
    const Status status = new_status();
    Tensor output(api().TF_AllocateOutput(context, k, api().TF_TensorType(begin->get()), shape.data(),
                                          static_cast<int>(shape.size()), span_of(begin->get()).bytes, status.get()));
    check(status.get());
    return output;
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
