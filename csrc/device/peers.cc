#include "device/peers.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "core/error.h"
#include "core/hash.h"
#include "device/library.h"

namespace collectives {
namespace {

// A random number that tells whether a rank is of this process, and its pointers are good here as they are.
std::uint64_t this_process() {
  static const std::uint64_t number = [] {
    std::uint64_t made = 0;
    if (::getrandom(&made, sizeof(made), 0) != static_cast<ssize_t>(sizeof(made))) {
      made = static_cast<std::uint64_t>(::getpid());
    }
    return made;
  }();
  return number;
}

bool same_spans(const std::vector<Span>& a, const std::vector<Span>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Span& x, const Span& y) { return x.data == y.data && x.bytes == y.bytes; });
}

// Events of ranks that are gone, for later ones. They are never destroyed, since other ranks of this process may still
// wait for them: a wait for one that was recorded again ends a little late, which does no harm.
class SpareEvents {
 public:
  static SpareEvents& all() {
    static auto* const spare = new SpareEvents();
    return *spare;
  }
  void* acquire(const DeviceApi& api, int device) {
    {
      const std::lock_guard guard(lock_);
      std::vector<void*>& here = events_[device];
      if (!here.empty()) {
        void* const event = here.back();
        here.pop_back();
        return event;
      }
    }
    void* event = nullptr;
    check_device(api.event_create(device, true, &event), "making an event");
    return event;
  }
  void release(int device, void* event) {
    const std::lock_guard guard(lock_);
    events_[device].push_back(event);
  }

 private:
  std::mutex lock_;
  std::map<int, std::vector<void*>> events_;
};

}  // namespace

std::string DeviceCallHeader::text() const {
  std::string made(name(collective));
  made += " of " + std::to_string(count) + " " + std::string(name(dtype));
  if (reduces(collective)) {
    made += ", op " + std::string(name(op));
  }
  if (has_root(collective)) {
    made += ", root " + std::to_string(root);
  }
  return made + (is_vector(collective) ? "" : ", " + std::to_string(inputs) + " arrays");
}

DevicePeers::DevicePeers(const DeviceApi& api, int rank, int size, int device)
    : api_(api), rank_(rank), size_(size), device_(device), peers_(size), spans_(size), inputs_(size), outputs_(size) {
  static_assert(sizeof(DeviceEndpoint) <= kEndpointBytes);
  static_assert(sizeof(DeviceCallHeader) + sizeof(DeviceSpan) <= kHeaderBytes);
  constexpr std::int64_t kProbeBytes = 256;
  try {
    for (void** event : {&ready_, &done_, &all_done_}) {
      *event = SpareEvents::all().acquire(api, device);
    }
    check_device(api.allocate(device, kProbeBytes, &probe_), "allocating device memory");
  } catch (...) {
    release_all();
    throw;
  }
}

DevicePeers::~DevicePeers() { release_all(); }

// Errors are ignored: a device that fails here has failed before, and calls have reported it.
void DevicePeers::release_all() {
  constexpr double kGrace = 10;  // seconds
  int before = -1;
  api_.get_device(&before);
  api_.set_device(device_);
  await_all(kGrace);  // others may still read and write what is released here
  for (const Peer& peer : peers_) {
    for (void* event : {peer.ready, peer.done}) {
      if (event != nullptr && !peer.local) {
        api_.event_destroy(event);
      }
    }
    for (const Opened& opened : peer.opened) {
      api_.close_memory(opened.base);
    }
  }
  for (void* event : {ready_, done_, all_done_}) {
    if (event != nullptr) {
      SpareEvents::all().release(device_, event);
    }
  }
  for (void* memory : {probe_, scaled_}) {
    if (memory != nullptr) {
      api_.release(memory);
    }
  }
  if (before >= 0) {
    api_.set_device(before);
  }
}

std::vector<std::byte> DevicePeers::endpoint() const {
  DeviceEndpoint endpoint;
  endpoint.process = this_process();
  endpoint.rank = rank_;
  endpoint.device = device_;
  endpoint.probe = reinterpret_cast<std::uint64_t>(probe_);
  endpoint.ready = reinterpret_cast<std::uint64_t>(ready_);
  endpoint.done = reinterpret_cast<std::uint64_t>(done_);
  endpoint.exported = api_.export_memory(probe_, &endpoint.probe_handle);
  for (const auto& [event, handle] :
       {std::pair(ready_, &endpoint.ready_handle), std::pair(done_, &endpoint.done_handle)}) {
    endpoint.exported = endpoint.exported != kDeviceOk ? endpoint.exported : api_.export_event(event, handle);
  }
  std::vector<std::byte> made;
  put(made, endpoint);
  made.resize(kEndpointBytes);
  return made;
}

std::string DevicePeers::connect(std::span<const std::byte> endpoints) {
  if (size_ > kMostDeviceOperands) {
    return "there are " + std::to_string(size_) + " ranks; at most " + std::to_string(kMostDeviceOperands) +
           " can add up each other's device memory";
  }
  for (int r = 0; r < size_; ++r) {
    const DeviceEndpoint endpoint = get<DeviceEndpoint>(endpoints, r * kEndpointBytes);
    Peer& peer = peers_[r];
    peer.local = endpoint.process == this_process();
    const std::string who = "device " + std::to_string(endpoint.device) + " of rank " + std::to_string(r);
    if (peer.local) {
      peer.ready = reinterpret_cast<void*>(endpoint.ready);
      peer.done = reinterpret_cast<void*>(endpoint.done);
      int yes = endpoint.device == device_ ? 1 : 0;
      if (yes == 0 && (api_.enable_peer(device_, endpoint.device, &yes) != kDeviceOk || yes == 0)) {
        return "device " + std::to_string(device_) + " cannot address " + who;
      }
      continue;
    }
    int code = endpoint.exported;
    Opened probe{endpoint.probe - endpoint.probe_handle.offset, endpoint.probe_handle, nullptr};
    code = code != kDeviceOk ? code : api_.open_memory(&probe.handle, device_, &probe.base);
    if (code == kDeviceOk) {
      peer.opened.push_back(probe);
    }
    code = code != kDeviceOk ? code : api_.open_event(&endpoint.ready_handle, device_, &peer.ready);
    code = code != kDeviceOk ? code : api_.open_event(&endpoint.done_handle, device_, &peer.done);
    if (code != kDeviceOk) {
      return "the memory of " + who + " cannot be opened: " + api_.error_name(code) + " (" + api_.error_text(code) +
             ")";
    }
  }
  return "";
}

std::vector<std::byte> DevicePeers::header(const DeviceCall& call, void* stream) {
  CurrentDevice current;
  current.use(device_);
  const Problem& problem = call.problem;
  if (used_) {
    check_device(api_.stream_wait(stream, all_done_), "waiting for the call before");
  }
  std::vector<Span> inputs = call.inputs;
  const bool in_place = problem.op != Op::kPremulSum && same_spans(call.inputs, call.outputs);
  if (problem.op == Op::kPremulSum && reduces(problem.collective)) {
    std::byte* scaled = scale(call, stream);
    for (Span& span : inputs) {
      span.data = scaled;
      scaled += span.bytes;
    }
  }
  check_device(api_.event_record(ready_, stream), "recording an event");

  DeviceCallHeader header;
  header.collective = problem.collective;
  header.op = problem.op;
  header.dtype = problem.dtype;
  header.in_place = in_place;
  header.root = has_root(problem.collective) ? problem.root : 0;
  header.inputs = static_cast<std::int32_t>(inputs.size());
  header.outputs = in_place ? 0 : static_cast<std::int32_t>(call.outputs.size());
  header.count = problem.count;
  header.lengths = hash_with(kHashStart, static_cast<std::int64_t>(call.shapes.hash()));
  if (is_vector(problem.collective)) {
    for (const std::int64_t count : problem.counts) {
      header.lengths = hash_with(header.lengths, count);
    }
  } else {
    for (const Span& span : inputs) {
      header.lengths = hash_with(header.lengths, span.bytes);
    }
  }
  std::vector<std::byte> made;
  put(made, header);
  rest_.clear();
  const bool others = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.local; });
  const auto add = [&](const Span& span) {
    DeviceSpan exported{reinterpret_cast<std::uint64_t>(span.data), span.bytes, {}};
    if (others && span.bytes > 0 && !header.hidden) {
      header.hidden = api_.export_memory(span.data, &exported.handle) != kDeviceOk;
    }
    put(made.size() + sizeof(DeviceSpan) <= kHeaderBytes ? made : rest_, exported);
  };
  std::for_each(inputs.begin(), inputs.end(), add);
  if (!in_place) {
    std::for_each(call.outputs.begin(), call.outputs.end(), add);
  }
  made.resize(kHeaderBytes);
  std::memcpy(made.data(), &header, sizeof(header));
  return made;
}

// Puts the inputs times the factor into memory of this rank, and returns where.
std::byte* DevicePeers::scale(const DeviceCall& call, void* stream) {
  const std::int64_t bytes = Buffer::of(call.inputs).bytes;
  if (bytes > scaled_bytes_) {
    if (scaled_ != nullptr) {
      check_device(api_.release(scaled_), "releasing device memory");
      scaled_ = nullptr;
      scaled_bytes_ = 0;
    }
    check_device(api_.allocate(device_, bytes, &scaled_), "allocating device memory");
    scaled_bytes_ = bytes;
  }
  DeviceReduction scaling{};
  scaling.dtype = call.problem.dtype;
  scaling.op = Op::kPremulSum;
  scaling.source_count = 1;
  scaling.destination_count = 1;
  scaling.operand = call.factor;
  auto* to = static_cast<std::byte*>(scaled_);
  for (const Span& span : call.inputs) {
    scaling.sources[0] = span.data;
    scaling.destinations[0] = to;
    scaling.count = span.bytes / call.problem.element();
    if (scaling.count > 0) {
      check_device(api_.reduce(&scaling, stream), "scaling");
    }
    to += span.bytes;
  }
  return static_cast<std::byte*>(scaled_);
}

std::vector<std::int64_t> DevicePeers::check(std::span<const std::byte> headers) {
  headers_.assign(size_, DeviceCallHeader());
  std::vector<std::int64_t> rests(size_);
  constexpr auto kFit = static_cast<std::int32_t>((kHeaderBytes - sizeof(DeviceCallHeader)) / sizeof(DeviceSpan));
  for (int r = 0; r < size_; ++r) {
    const std::span<const std::byte> bytes = headers.subspan(r * kHeaderBytes, kHeaderBytes);
    const DeviceCallHeader& header = headers_[r] = get<DeviceCallHeader>(bytes, 0);
    if (!header.fits(headers_[0])) {
      ErrorContext context;
      context.rank = rank_;
      context.peer = r == rank_ ? 0 : r;
      context.collective = name(header.collective);
      throw CollectivesError(
          ErrorKind::kMismatch,
          "ranks disagree: rank 0 called " + headers_[0].text() + ", rank " + std::to_string(r) + " called " +
              header.text() +
              "; all ranks must make the same calls in the same order on arrays of the same lengths and shapes",
          context);
    }
    rests[r] = static_cast<std::int64_t>(sizeof(DeviceSpan)) * std::max(0, header.inputs + header.outputs - kFit);
    spans_[r].clear();
    for (std::int32_t i = 0; i < std::min(kFit, header.inputs + header.outputs); ++i) {
      spans_[r].push_back(get<DeviceSpan>(bytes, sizeof(DeviceCallHeader) + i * sizeof(DeviceSpan)));
    }
  }
  const bool hidden =
      std::any_of(headers_.begin(), headers_.end(), [](const DeviceCallHeader& header) { return header.hidden; });
  return hidden ? std::vector<std::int64_t>() : rests;
}

}  // namespace collectives
