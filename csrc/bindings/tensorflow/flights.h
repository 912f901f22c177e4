// Collectives that graphs have started and wait for. TensorFlow's threads must not be kept waiting, there may be one
// only; so one thread of ours drives the engine for all of them and calls back.
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

// One collective, and the memory that it reads and writes.
struct Flight {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Work> work;
  std::int64_t renewable = 0;  // the number of the communicator where a mismatch is not its end (renewal.h), else 0
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::function<void()> over;  // called once, when the work is finished
};

class Flights {
 public:
  static Flights& instance();

  // Drives a collective that was posted, and keeps its memory until it is over, whatever becomes of the graph. Returns
  // the handle: a scalar tensor with the number of the flight. When the last reference to that tensor goes, so does the
  // number; TensorFlow has nothing else that tells of a step that was given up.
  Tensor launch(std::shared_ptr<Flight> flight);

  // The flight of a handle; throws ClosedError when there is none.
  std::shared_ptr<Flight> find(const TfTensor* handle);

  // Calls `over` when the work is finished: on this thread if it is already, else on the thread that drives.
  void when_over(const std::shared_ptr<Flight>& flight, std::function<void()> over);

  // How many collectives are looked after at the moment.
  std::size_t in_flight();

 private:
  Flights();
  void loop();
  bool any_over();
  std::vector<std::shared_ptr<Flight>> take_over();
  static void drop(void* data, std::size_t bytes, void* argument);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::int64_t, std::shared_ptr<Flight>> flights_;  // whose handles exist
  std::vector<std::shared_ptr<Flight>> pending_;
  std::int64_t next_ = 1;
};

}  // namespace collectives::tensorflow
