// CollectivesStart, CollectivesStartGather: begin a collective over the ranks of a communicator and return at once.
//
// Inputs: the tensors of this rank; the number of rows of every rank (all_gather only, else empty); the token, a
// resource that TensorFlow orders all ops by which take it, so that every rank starts its collectives in program order.
// Outputs: the handle that CollectivesWait takes; the memory of the results, in which the collective is still at work.
// Results take the place of inputs that nobody else needs.

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bindings/tensorflow/flights.h"
#include "bindings/tensorflow/kernel.h"
#include "core/error.h"
#include "runtime/directory.h"
#include "runtime/plan.h"

namespace collectives::tensorflow {
namespace {

constexpr const char* kStart = "CollectivesStart";
constexpr const char* kStartGather = "CollectivesStartGather";

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
        names_(strings_attribute(construction, "names")) {}

  void compute(TfContext* context) const {
    auto flight = std::make_shared<Flight>();
    flight->communicator = communicator_by_number(communicator_);
    Call call;
    call.collective = collective_;
    call.op = op_;
    call.root = root_;
    call.timeout_s = timeout_s_;
    call.name = name_;
    auto details = std::make_shared<TensorDetails>();
    details->names = names_;
    const int tensors = api().TF_NumInputs(context) - 2;
    for (int i = 0; i < tensors; ++i) {
      add(context, i, tensors, *flight, call);
    }
    call.details = std::move(details);
    call.algorithm = algorithm_number(call.problem(), algorithm_, flight->communicator->topology());
    Flights& flights = Flights::instance();  // its thread, before anything is under way
    flight->work = flight->communicator->post(call, false);
    try {
      set_output(context, 0, flights.launch(flight).get());
    } catch (...) {
      flight->communicator->give_up(ErrorKind::kPeer, "an op of TensorFlow could not be made of a call under way");
      throw;
    }
  }

 private:
  // Adds tensor i to the call.
  void add(TfContext* context, int i, int tensors, Flight& flight, Call& call) const {
    Tensor tensor = input(context, i);
    const DType dtype = dtype_of(tensor.get(), tensor_name(names_, i));
    if (i > 0 && dtype != call.dtype) {
      throw ArgumentTypeError(tensor_name(names_, i) + " is of type " + std::string(name(dtype)) + " and " +
                              tensor_name(names_, 0) + " of type " + std::string(name(call.dtype)) +
                              "; one call takes one type");
    }
    call.dtype = dtype;
    std::vector<std::int64_t> shape = shape_of(tensor.get());
    if (collective_ == Collective::kAllGather) {
      std::vector<std::int64_t> alike = shape;
      if (!alike.empty()) {
        alike[0] = -1;  // the rows may differ between ranks, what follows may not
      }
      call.shapes.add(alike);
      add_gathered(context, tensors, std::move(tensor), std::move(shape), flight, call);
      return;
    }
    call.shapes.add(shape);
    const Span given = span_of(tensor.get());
    tensor.reset();  // see forward_or_allocate
    Tensor result = forward_or_allocate(context, {i}, 1 + i, shape);
    const Span made = span_of(result.get());
    if (made.data != given.data) {
      tensor = input(context, i);
    }
    if (collective_ == Collective::kBroadcast) {
      if (flight.communicator->rank() == root_ && made.data != given.data && made.bytes > 0) {
        std::memcpy(made.data, given.data, made.bytes);
      }
      tensor.reset();
      call.input.push_back(made);
    } else {
      call.input.push_back(given);
    }
    call.output.push_back(made);
    if (tensor != nullptr) {
      flight.inputs.push_back(std::move(tensor));
    }
    flight.outputs.push_back(std::move(result));
  }

  // One tensor per call; the results of all ranks lie one behind the other.
  void add_gathered(TfContext* context, int tensors, Tensor tensor, std::vector<std::int64_t> shape, Flight& flight,
                    Call& call) const {
    const Tensor rows = input(context, tensors);
    const Span list = span_of(rows.get());
    const auto ranks = static_cast<std::size_t>(flight.communicator->size());
    if (tensors != 1 || shape.empty() || list.bytes != static_cast<std::int64_t>(ranks * sizeof(std::int64_t))) {
      throw ArgumentError(
          "all_gather takes one tensor of at least one dimension and one number of rows per rank, not " +
          std::to_string(tensors) + " tensors, " + std::to_string(shape.size()) + " dimensions and " +
          std::to_string(list.bytes / 8) + " numbers for " + std::to_string(ranks) + " ranks");
    }
    const std::int64_t row = std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
    std::int64_t total = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      std::int64_t count = 0;
      std::memcpy(&count, list.data + r * sizeof count, sizeof count);
      total += count;
      call.lengths.push_back(count * row);
    }
    shape[0] = total;
    const Status status = new_status();
    const auto bytes = static_cast<std::size_t>(total * row) * size_of(call.dtype);
    Tensor result(api().TF_AllocateOutput(context, 1, api().TF_TensorType(tensor.get()), shape.data(),
                                          static_cast<int>(shape.size()), bytes, status.get()));
    check(status.get());
    call.input.push_back(span_of(tensor.get()));
    call.output.push_back(span_of(result.get()));
    flight.inputs.push_back(std::move(tensor));
    flight.outputs.push_back(std::move(result));
  }

  std::int64_t communicator_;
  Collective collective_;
  Op op_;
  std::string algorithm_;
  int root_;
  double timeout_s_;
  std::string name_;
  std::vector<std::string> names_;
};

// The outputs after the handle are like the inputs before the last two.
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
                "names: list(string) = []"},
               {"values: T", "rows: int64", "token: resource"},
               {"handle: int64", "results: T"},
               true,
               true,
               shapes});
  register_kernel(op,
                  api().TF_NewKernelBuilder(op, "CPU", create_kernel<Start>, run_kernel<Start>, destroy_kernel<Start>));
}

}  // namespace

void register_start() {
  register_one(kStart, start_shapes);
  register_one(kStartGather, nullptr);
}

}  // namespace collectives::tensorflow
