// CollectivesStart, CollectivesStartParts: begin a collective over the ranks of a communicator and return at once.
//
// Inputs:
//   values  the tensors of this rank
//   rows    vector collectives: the rows of every part, by rank (all_to_all: those that rank 0 sends to each rank, then
//           those that rank 1 sends, and so on); else empty
//   token   a resource. TensorFlow runs ops on one resource in program order, so all ranks start their collectives in
//           the same order.
// Outputs:
//   handle  for CollectivesWait
//   results the memory of the results, in which the collective still works. It may be that of an input, where nothing
//           else needs the input.

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bindings/tensorflow/in_flight_operations.h"
#include "bindings/tensorflow/kernel.h"
#include "bindings/tensorflow/renewal.h"
#include "core/error.h"
#include "engine/directory.h"
#include "engine/plan.h"

namespace collectives::tensorflow {
namespace {

constexpr const char* kStart = "CollectivesStart";
constexpr const char* kStartVector = "CollectivesStartParts";

class Start {
 public:
  explicit Start(TfConstruction* construction)
      : communicator_(integer_attribute(construction, "communicator")),
        collective_(parse_collective(string_attribute(construction, "collective"))),
        op_(parse_op(string_attribute(construction, "op"))),
        algorithm_(string_attribute(construction, "algorithm")),
        root_(static_cast<int>(integer_attribute(construction, "root"))),
        timeout_s_(float_attribute(construction, "timeout")),
        name_(string_attribute(construction, "call_name")),
        names_(strings_attribute(construction, "names")),
        renewable_(integer_attribute(construction, "renewable") != 0) {}

  void compute(TfContext* context) const {
    if (!renewable_) {
      start(context, communicator_by_number(communicator_));
      return;
    }
    const std::int64_t step = api().TF_StepId(context);
    const std::shared_ptr<Communicator> communicator = renewed(communicator_, step);
    try {
      start(context, communicator);
    } catch (const CollectivesError& error) {
      if (is_mismatch(error)) {
        schedule_renewal(communicator_, step, *communicator);
      }
      throw;
    }
  }

  bool renewable() const { return renewable_; }

 private:
  void start(TfContext* context, std::shared_ptr<Communicator> communicator) const {
    auto operation = std::make_shared<InFlightOperation>();
    operation->communicator = std::move(communicator);
    operation->renewable = renewable_ ? communicator_ : 0;
    Call call;
    call.collective = collective_;
    call.op = op_;
    call.root = root_;
    call.timeout_s = timeout_s_;
    call.name = name_;
    auto details = std::make_shared<TensorDetails>();
    details->names = names_;
    details->agreed = renewable_ && !names_.empty();
    const int tensors = api().TF_NumInputs(context) - 2;
    for (int i = 0; i < tensors; ++i) {
      add(context, i, tensors, *operation, call);
    }
    call.details = std::move(details);
    call.algorithm = algorithm_number(call.problem(), algorithm_, operation->communicator->topology());
    // Before the post, since this starts the progress thread, which may fail.
    InFlightOperations& operations = InFlightOperations::instance();
    operation->work = operation->communicator->post(call, false);
    try {
      set_output(context, 0, operations.track(operation).get());
    } catch (...) {
      operation->communicator->give_up(ErrorKind::kPeer, "an op of TensorFlow could not be made of a call under way");
      throw;
    }
  }

  // Adds tensor i to the call.
  void add(TfContext* context, int i, int tensors, InFlightOperation& operation, Call& call) const {
    Tensor tensor = input(context, i);
    const DType dtype = dtype_of(tensor.get(), tensor_name(names_, i));
    if (i > 0 && dtype != call.dtype) {
      throw ArgumentTypeError(tensor_name(names_, i) + " is of type " + std::string(name(dtype)) + " and " +
                              tensor_name(names_, 0) + " of type " + std::string(name(call.dtype)) +
                              "; one call takes one type");
    }
    call.dtype = dtype;
    std::vector<std::int64_t> shape = shape_of(tensor.get());
    if (is_vector(collective_)) {
      std::vector<std::int64_t> alike = shape;
      if (!alike.empty() && collective_ != Collective::kReduceScatter) {
        alike[0] = -1;  // ranks may have different numbers of rows, but agree on the other dimensions
      }
      call.shapes.add(alike);
      add_vector_tensor(context, tensors, std::move(tensor), std::move(shape), operation, call);
      return;
    }
    call.shapes.add(shape);
    const Span given = span_of(tensor.get());
    tensor.reset();  // a reference would keep forward_or_allocate() from using its memory
    Tensor result = forward_or_allocate(context, {i}, 1 + i, shape);
    const Span made = span_of(result.get());
    if (made.data != given.data) {
      tensor = input(context, i);
    }
    if (collective_ == Collective::kBroadcast) {
      if (operation.communicator->rank() == root_ && made.data != given.data && made.bytes > 0) {
        std::memcpy(made.data, given.data, made.bytes);
      }
      tensor.reset();
      call.input.push_back(made);
    } else {
      call.input.push_back(given);
    }
    call.output.push_back(made);
    if (tensor != nullptr) {
      operation.inputs.push_back(std::move(tensor));
    }
    operation.outputs.push_back(std::move(result));
  }

  // Adds the tensor of a vector collective, which has only one.
  void add_vector_tensor(TfContext* context, int tensors, Tensor tensor, std::vector<std::int64_t> shape,
                         InFlightOperation& operation, Call& call) const {
    const Tensor rows = input(context, tensors);
    const Span list = span_of(rows.get());
    const auto ranks = static_cast<std::size_t>(operation.communicator->size());
    const auto rank = static_cast<std::size_t>(operation.communicator->rank());
    const std::size_t parts = collective_ == Collective::kAllToAll ? ranks * ranks : ranks;
    if (tensors != 1 || shape.empty() || list.bytes != static_cast<std::int64_t>(parts * sizeof(std::int64_t))) {
      throw ArgumentError(std::string(name(collective_)) +
                          " takes one tensor of at least one dimension and one number of rows per part, not " +
                          std::to_string(tensors) + " tensors, " + std::to_string(shape.size()) + " dimensions and " +
                          std::to_string(list.bytes / 8) + " numbers for " + std::to_string(parts) + " parts");
    }
    const std::int64_t row = std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
    std::int64_t result_rows = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      std::int64_t count = 0;
      std::memcpy(&count, list.data + part * sizeof count, sizeof count);
      // The result of an all_gather has the parts of all ranks, any other those for this rank.
      result_rows += collective_ == Collective::kAllGather || part % ranks == rank ? count : 0;
      call.lengths.push_back(count * row);
    }
    shape[0] = result_rows;
    const Status status = new_status();
    const auto bytes = static_cast<std::size_t>(result_rows * row) * size_of(call.dtype);
    Tensor result(api().TF_AllocateOutput(context, 1, api().TF_TensorType(tensor.get()), shape.data(),
                                          static_cast<int>(shape.size()), bytes, status.get()));
    check(status.get());
    call.input.push_back(span_of(tensor.get()));
    call.output.push_back(span_of(result.get()));
    operation.inputs.push_back(std::move(tensor));
    operation.outputs.push_back(std::move(result));
  }

  std::int64_t communicator_;
  Collective collective_;
  Op op_;
  std::string algorithm_;
  int root_;
  double timeout_s_;
  std::string name_;
  std::vector<std::string> names_;
  bool renewable_;
};

// As run_kernel, but with the error codes of a group that is renewed after a mismatch.
void run_start(void* kernel, TfContext* context) {
  const auto* const start = static_cast<const Start*>(kernel);
  try {
    start->compute(context);
  } catch (const std::exception& error) {
    api().TF_OpKernelContext_Failure(context, status_of(error, start->renewable()).get());
  }
}

// The outputs after the handle have the shapes of the inputs before `rows` and `token`.
void start_shapes(TfShapeContext* context, TfStatus* status) {
  const auto tensors = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context)) - 2;
  api().TF_ShapeInferenceContextSetUnknownShape(context, status);
  for (int i = 0; i < tensors && api().TF_GetCode(status) == 0; ++i) {
    same_shape(context, i, 1 + i, status);
  }
}

void register_one(const char* op, void (*shapes)(TfShapeContext*, TfStatus*)) {
  register_op({op,
               {"T: list(type) >= 1", "communicator: int", "collective: string", "op: string = 'sum'",
                "algorithm: string = 'auto'", "root: int = 0", "timeout: float = -1.0", "call_name: string = ''",
                "names: list(string) = []", "renewable: int = 0"},
               {"values: T", "rows: int64", "token: resource"},
               {"handle: int64", "results: T"},
               true,
               true,
               shapes});
  register_kernel(op, api().TF_NewKernelBuilder(op, "CPU", create_kernel<Start>, run_start, destroy_kernel<Start>));
}

}  // namespace

void register_start() {
  register_one(kStart, start_shapes);
  register_one(kStartVector, nullptr);
}

}  // namespace collectives::tensorflow
