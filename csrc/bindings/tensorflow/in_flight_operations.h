// In-flight operations: collectives that graphs of TensorFlow have started. Waiting for them must not block
// TensorFlow's threads, of which there may be only one. So one progress thread drives the engine for all of them, and
// calls back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/tensorflow/kernel.h"
#include "engine/communicator.h"

namespace collectives::tensorflow {

// A collective in flight, and the memory that it reads and writes.
struct InFlightOperation {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Work> work;
  std::int64_t renewable = 0;  // the communicator's number, where it is renewed after a mismatch (renewal.h); else 0
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::function<void()> on_end;  // called once, when the work is finished
};

class InFlightOperations {
 public:
  static InFlightOperations& instance();

  // Drives a posted collective to its end and keeps its memory until then, whether or not the graph waits for it.
  // Returns a handle: a scalar tensor with the number of the operation. The number is forgotten when TensorFlow drops
  // the last reference to that tensor, which is the only sign that it has abandoned a step.
  Tensor track(std::shared_ptr<InFlightOperation> operation);

  // The operation of a handle. Throws CollectivesError (kClosed) when there is none.
  std::shared_ptr<InFlightOperation> find(const TfTensor* handle);

  // Calls `on_end` when the work is finished: on this thread if that is soon, else on the progress thread.
  void on_completion(const std::shared_ptr<InFlightOperation>& operation, std::function<void()> on_end);

  // How many operations are in flight.
  std::size_t in_flight();

 private:
  InFlightOperations();
  void loop();
  bool any_finished();
  std::vector<std::shared_ptr<InFlightOperation>> extract_finished();
  static void handle_deleted(void* data, std::size_t bytes, void* argument);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::int64_t, std::shared_ptr<InFlightOperation>> by_handle_;  // those whose handles exist
  std::vector<std::shared_ptr<InFlightOperation>> pending_;               // those that have to be driven
  std::int64_t next_ = 1;
};

}  // namespace collectives::tensorflow
