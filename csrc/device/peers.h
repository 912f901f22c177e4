// Collectives of ranks that can address each other's device memory: threads of one process, or processes of one host
// whose devices reach each other (CUDA IPC). Nothing is staged and nothing packed.
//
// The ranks meet on the host, by means that the caller provides, since only pointers and events travel there:
//
//   1. head() describes the call and the memory of this rank, whose stream records an event: the memory is ready. All
//      ranks exchange heads; check() compares the calls; ranks with many arrays exchange what did not fit (rest()).
//   2. run() puts this rank's share into its stream: it waits for all events, then reduces part r of all inputs
//   straight
//      into part r of all outputs, or copies what it gets out of the inputs of the others. Then the ranks meet again.
//   3. finish(): the stream waits until the others have done their shares.
//
// No step waits for a device. Every element is read and written by one rank only, so in-place calls need no copy. It is
// the two-phase exchange of Rabenseifner (reduce-scatter, then all-gather) with the second phase done by the stores of
// the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/device.h"
#include "core/shapes.h"
#include "device/card.h"
#include "schedule/algorithm.h"

namespace collectives {

// One collective of one rank. The spans lie one behind the other: their bytes are the input and the output of
// `problem`.
struct DeviceCall {
  Problem problem;
  double factor = 1;  // kPremulSum
  std::vector<Span> inputs;
  std::vector<Span> outputs;  // the same as inputs when in place
  Shapes shapes;              // of the inputs, where ranks have to agree about them
};

class DevicePeers {
 public:
  // What every rank says of itself once, and of every call.
  static constexpr std::size_t kCardBytes = 384;
  static constexpr std::size_t kHeadBytes = 512;

  // Takes events and a little memory on the device. Throws CollectivesError (kBackend) where the device refuses.
  DevicePeers(const DeviceApi& api, int rank, int size, int device);
  DevicePeers(const DevicePeers&) = delete;
  DevicePeers& operator=(const DevicePeers&) = delete;
  ~DevicePeers();

  int device() const { return device_; }

  // What the others need to know of this rank once: kCardBytes.
  std::vector<std::byte> card() const;
  // Takes the cards of all ranks. Empty when this rank can address the memory of every other, else why it cannot. The
  // ranks must agree before one of them calls.
  std::string connect(std::span<const std::byte> cards);

  std::vector<std::byte> head(const DeviceCall& call, void* stream);
  // The heads of all ranks. Throws CollectivesError (kMismatch), on every rank the same, when the calls differ.
  // Returns how many bytes each rank's rest has; nothing, on every rank, when some of the memory cannot be shown to
  // other processes (only what cudaMalloc gave can), so that the call must go another way.
  std::vector<std::int64_t> check(std::span<const std::byte> heads);
  std::vector<std::byte> rest() const { return rest_; }
  // The rests of all ranks, one behind the other.
  void run(const DeviceCall& call, std::span<const std::byte> rests, void* stream);
  void finish(void* stream);
  // Waits until what was put into streams by the last call is done, on all ranks. False after that many seconds.
  bool wait(double seconds) const;

 private:
  // Memory of another process, by its allocation.
  struct Opened {
    std::uint64_t address = 0;  // of the allocation, in its process
    DeviceMemoryHandle handle{};
    void* base = nullptr;
  };
  struct Peer {
    bool local = false;  // in this process
    void* ready = nullptr;
    void* done = nullptr;
    std::vector<Opened> opened;
  };

  void let_go();
  int await_all(double seconds) const;
  void* open(int r, const DevicePlace& place);
  std::byte* scale(const DeviceCall& call, void* stream);
  void reduce_part(const DeviceCall& call, std::int64_t offset, std::int64_t bytes, const std::vector<int>& writers,
                   std::int64_t output_offset, void* stream);
  void copy_part(const DeviceCall& call, int from, void* stream);

  const DeviceApi& api_;
  int rank_;
  int size_;
  int device_;
  void* ready_ = nullptr;  // events: the inputs of this rank are written,
  void* done_ = nullptr;   // its share of the call is done,
  void* over_ = nullptr;   // and so are those of all others
  bool used_ = false;
  void* probe_ = nullptr;   // memory by which others find out whether they can address this device
  void* scaled_ = nullptr;  // kPremulSum: the input times the factor
  std::int64_t scaled_bytes_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::byte> rest_;
  std::vector<DeviceHead> heads_;
  std::vector<std::vector<DevicePlace>> places_;  // of each rank, as it addresses them
  std::vector<std::vector<Span>> inputs_;         // of each rank, as this process addresses them
  std::vector<std::vector<Span>> outputs_;
};

}  // namespace collectives
