// CollectivesWait: gives the results of a collective that was started, when it is over. An asynchronous kernel: it
// keeps no thread of TensorFlow, so any number may be in flight with a single one.

#include <exception>
#include <memory>
#include <utility>

#include "bindings/tensorflow/flights.h"
#include "bindings/tensorflow/kernel.h"
#include "bindings/tensorflow/renewal.h"
#include "core/error.h"

namespace collectives::tensorflow {
namespace {

constexpr const char* kOpName = "CollectivesWait";

using Done = std::function<void()>;

// TensorFlow passes the address of a std::function on its stack, which is gone when the kernel returns; C has no
// function that keeps it. So it is moved away, which leans on the layout of libstdc++ that both sides are built with
// (tests/tensorflow/test_tensorflow_ops.py has a test for it).
Done take(void* done) { return std::move(*static_cast<Done*>(done)); }

void fail(TfContext* context, const std::exception& error, const Flight* flight) {
  const bool renewable = flight != nullptr && flight->renewable != 0;
  if (renewable && is_mismatch(error)) {
    note_mismatch(flight->renewable, api().TF_StepId(context), *flight->communicator);
  }
  api().TF_OpKernelContext_Failure(context, status_of(error, renewable).get());
}

void finish(TfContext* context, Flight& flight) {
  try {
    if (const CollectivesError* error = flight.work->error.get(); error != nullptr) {
      throw CollectivesError(*error);
    }
    if (flight.outputs.empty()) {
      throw CollectivesError(ErrorKind::kGeneric, "a collective was waited for twice", {});
    }
    for (std::size_t i = 0; i < flight.outputs.size(); ++i) {
      set_output(context, static_cast<int>(i), flight.outputs[i].get());
    }
    // Ops that come after may then write into their memory.
    flight.outputs.clear();
    flight.inputs.clear();
  } catch (const std::exception& error) {
    fail(context, error, &flight);
  }
}

void wait(void* /*kernel*/, TfContext* context, void* done_on_stack) {
  const Done done = take(done_on_stack);
  try {
    const Tensor handle = input(context, 0);
    const std::shared_ptr<Flight> flight = Flights::instance().find(handle.get());
    Flights::instance().when_over(flight, [context, flight, done] {
      finish(context, *flight);
      done();
    });
  } catch (const std::exception& error) {
    fail(context, error, nullptr);
    done();
  }
}

// The outputs are like the inputs after the handle.
void wait_shapes(TfShapeContext* context, TfStatus* status) {
  const auto inputs = static_cast<int>(api().TF_ShapeInferenceContextNumInputs(context));
  for (int i = 1; i < inputs && api().TF_GetCode(status) == 0; ++i) {
    same_shape(context, i, i - 1, status);
  }
}

}  // namespace

// Not stateful, which would put it into the chain of the token. But it must run also where nobody needs the results,
// and the optimiser makes nothing of ops without an effect. Of one that has an attribute of this name, with this value,
// it thinks that it changes its inputs.
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
