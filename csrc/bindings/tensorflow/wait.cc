// CollectivesWait: outputs the results of a collective when it has ended. An asynchronous kernel: it blocks no thread
// of TensorFlow, so any number of collectives may be in flight with a single thread.

#include <exception>
#include <memory>
#include <utility>

#include "bindings/tensorflow/in_flight_operations.h"
#include "bindings/tensorflow/kernel.h"
#include "bindings/tensorflow/renewal.h"
#include "core/error.h"

namespace collectives::tensorflow {
namespace {

constexpr const char* kOpName = "CollectivesWait";

using Done = std::function<void()>;

// TensorFlow passes the address of a std::function on its stack, which is gone when the kernel returns, and the C API
// has no function that keeps it. So it is moved away, which relies on both sides being built with libstdc++
// (tests/tensorflow/test_tensorflow_ops.py has a test for it).
Done move_callback(void* done) { return std::move(*static_cast<Done*>(done)); }

void fail(TfContext* context, const std::exception& error, const InFlightOperation* operation) {
  const bool renewable = operation != nullptr && operation->renewable != 0;
  if (renewable && is_mismatch(error)) {
    schedule_renewal(operation->renewable, api().TF_StepId(context), *operation->communicator);
  }
  api().TF_OpKernelContext_Failure(context, status_of(error, renewable).get());
}

void finish(TfContext* context, InFlightOperation& operation) {
  try {
    if (const CollectivesError* error = operation.work->error.get(); error != nullptr) {
      throw CollectivesError(*error);
    }
    if (operation.outputs.empty()) {
      throw CollectivesError(ErrorKind::kGeneric, "a collective was waited for twice", {});
    }
    for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
      set_output(context, static_cast<int>(i), operation.outputs[i].get());
    }
    // Ops that come after may then write into their memory.
    operation.outputs.clear();
    operation.inputs.clear();
  } catch (const std::exception& error) {
    fail(context, error, &operation);
  }
}

void wait(void* /*kernel*/, TfContext* context, void* done_on_stack) {
  const Done done = move_callback(done_on_stack);
  try {
    const Tensor handle = input(context, 0);
    const std::shared_ptr<InFlightOperation> operation = InFlightOperations::instance().find(handle.get());
    InFlightOperations::instance().on_completion(operation, [context, operation, done] {
      finish(context, *operation);
      done();
    });
  } catch (const std::exception& error) {
    fail(context, error, nullptr);
    done();
  }
}

// The outputs have the shapes of the inputs after the handle.
void wait_shapes(TfShapeContext* context, TfStatus* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 1; i < inputs && api().TF_GetCode(status) == 0; ++i) {
    same_shape(context, i, i - 1, status);
  }
}

}  // namespace

// The op is not stateful, since then TensorFlow would run one at a time. But it must run even where no op uses the
// results, and the optimiser removes such ops unless they have side effects. It assumes one of ops that have the
// attribute `in_place` with the value true: that they write to their inputs.
void register_wait() {
  register_op({kOpName,
               {"T: list(type) >= 1", "in_place: bool = true"},
               {"handle: int64", "results: T"},
               {"values: T"},
               false,
               true,
               wait_shapes});
  register_kernel(kOpName, api().TF_NewAsyncKernelBuilder(
                               kOpName, "CPU", [](TfConstruction*) -> void* { return new char; }, wait,
                               [](void* kernel) { delete static_cast<char*>(kernel); }));
}

}  // namespace collectives::tensorflow
