// Collectives of ranks that can address each other's device memory: threads of one process, or processes of one host
// whose devices reach each other (CUDA IPC). Nothing is staged and nothing packed.
//
// The caller exchanges the messages of a call on the host; only pointers and events travel there:
//
//   1. header() describes the call and this rank's memory, and records an event: the memory is ready. All ranks
//   exchange
//      headers, and check() compares the calls. Ranks with many arrays then exchange what did not fit (rest()).
//   2. run() puts this rank's share into its stream: it waits for the events of all ranks, then reduces part r of all
//      inputs straight into part r of all outputs (r is this rank), or copies what this rank gets out of the inputs of
//      the others. Then the ranks synchronise on the host.
//   3. finish(): the stream waits until the others have done their shares.
//
// No step waits for a device. In a reduction each element is read and written by one rank only, so in-place calls need
// no copy. It is the two-phase exchange of Rabenseifner (reduce-scatter, then all-gather); the stores of the first
// phase do the second one, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/device.h"
#include "core/shapes.h"
#include "device/endpoint.h"
#include "schedule/algorithm.h"

namespace collectives {

// One collective of one rank. The spans, one behind the other, are the input and the output of `problem`.
struct DeviceCall {
  Problem problem;
  double factor = 1;  // kPremulSum
  std::vector<Span> inputs;
  std::vector<Span> outputs;  // the same as inputs when in place
  Shapes shapes;              // of the inputs, where ranks have to agree about them
};

class DevicePeers {
 public:
  static constexpr std::size_t kEndpointBytes = 384;
  static constexpr std::size_t kHeaderBytes = 512;

  // Allocates events and a little memory on the device. Throws CollectivesError (kBackend) where that fails.
  DevicePeers(const DeviceApi& api, int rank, int size, int device);
  DevicePeers(const DevicePeers&) = delete;
  DevicePeers& operator=(const DevicePeers&) = delete;
  ~DevicePeers();

  int device() const { return device_; }

  // What the others need to address this rank's device, kEndpointBytes. Exchanged once.
  std::vector<std::byte> endpoint() const;
  // endpoints: of all ranks. Returns why this rank cannot address the memory of every other, empty where it can. No
  // rank may make a call unless all can.
  std::string connect(std::span<const std::byte> endpoints);

  std::vector<std::byte> header(const DeviceCall& call, void* stream);
  // The headers of all ranks. Throws CollectivesError (kMismatch), on every rank the same, when the calls differ.
  // Returns the length of each rank's rest(). Returns nothing, on every rank, when some of the memory cannot be
  // exported to other processes (only memory of cudaMalloc can), so that the call must go another way.
  std::vector<std::int64_t> check(std::span<const std::byte> headers);
  // The spans that did not fit into the header.
  std::vector<std::byte> rest() const { return rest_; }
  // rests: of all ranks, one behind the other.
  void run(const DeviceCall& call, std::span<const std::byte> rests, void* stream);
  void finish(void* stream);
  // Waits until all ranks' devices have done the last call. False after that many seconds.
  bool wait(double seconds) const;

 private:
  // An allocation of another process that is mapped here.
  struct Opened {
    std::uint64_t address = 0;  // in the other process
    DeviceMemoryHandle handle{};
    void* base = nullptr;
  };
  struct Peer {
    bool local = false;  // in this process
    void* ready = nullptr;
    void* done = nullptr;
    std::vector<Opened> opened;
  };

  void release_all();
  int await_all(double seconds) const;
  void* open(int r, const DeviceSpan& span);
  std::byte* scale(const DeviceCall& call, void* stream);
  void reduce_part(const DeviceCall& call, std::int64_t offset, std::int64_t bytes, const std::vector<int>& writers,
                   std::int64_t output_offset, void* stream);
  void copy_part(const DeviceCall& call, int from, void* stream);

  const DeviceApi& api_;
  int rank_;
  int size_;
  int device_;
  // Events.
  void* ready_ = nullptr;     // this rank's inputs are written
  void* done_ = nullptr;      // this rank's share of the call is done
  void* all_done_ = nullptr;  // and so are those of all others
  bool used_ = false;         // all_done_ was recorded
  void* probe_ = nullptr;     // memory by which others find out whether they can address this device
  void* scaled_ = nullptr;    // kPremulSum: the input times the factor
  std::int64_t scaled_bytes_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::byte> rest_;
  std::vector<DeviceCallHeader> headers_;
  std::vector<std::vector<DeviceSpan>> spans_;  // of each rank, as that rank addresses them
  std::vector<std::vector<Span>> inputs_;       // of each rank, as this process addresses them
  std::vector<std::vector<Span>> outputs_;
};

}  // namespace collectives
