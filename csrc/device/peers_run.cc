#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/library.h"
#include "device/peers.h"
#include "schedule/schedule.h"

namespace collectives {

void* DevicePeers::open(int r, const DeviceSpan& span) {
  Peer& peer = peers_[r];
  if (peer.local || span.bytes == 0) {
    return reinterpret_cast<void*>(span.pointer);
  }
  const std::uint64_t address = span.pointer - static_cast<std::uint64_t>(span.handle.offset);
  const auto known =
      std::find_if(peer.opened.begin(), peer.opened.end(), [&](const Opened& o) { return o.address == address; });
  const auto same = [](const DeviceMemoryHandle& a, const DeviceMemoryHandle& b) {
    return std::memcmp(a.allocation, b.allocation, sizeof(a.allocation)) == 0;
  };
  if (known != peer.opened.end() && !same(known->handle, span.handle)) {
    // Another allocation has been made at that address since.
    check_device(api_.close_memory(known->base), "closing memory of another process");
    peer.opened.erase(known);
  } else if (known != peer.opened.end()) {
    return static_cast<std::byte*>(known->base) + span.handle.offset;
  }
  Opened opened{address, span.handle, nullptr};
  check_device(api_.open_memory(&opened.handle, device_, &opened.base), "opening memory of another process");
  peer.opened.push_back(opened);
  return static_cast<std::byte*>(opened.base) + span.handle.offset;
}

void DevicePeers::run(const DeviceCall& call, std::span<const std::byte> rests, void* stream) {
  CurrentDevice current;
  current.use(device_);
  std::size_t at = 0;
  for (int r = 0; r < size_; ++r) {
    const DeviceCallHeader& header = headers_[r];
    const auto inputs = static_cast<std::size_t>(header.inputs);
    for (; spans_[r].size() < inputs + header.outputs; at += sizeof(DeviceSpan)) {
      spans_[r].push_back(get<DeviceSpan>(rests, at));
    }
    inputs_[r].clear();
    outputs_[r].clear();
    for (const DeviceSpan& span : spans_[r]) {
      auto& spans = inputs_[r].size() < inputs ? inputs_[r] : outputs_[r];
      spans.push_back({static_cast<std::byte*>(open(r, span)), span.bytes});
    }
    if (header.in_place) {
      outputs_[r] = inputs_[r];
    }
    if (r != rank_) {
      check_device(api_.stream_wait(stream, peers_[r].ready), "waiting for another rank");
    }
  }
  const Problem& problem = call.problem;
  std::vector<int> everyone(size_);
  std::iota(everyone.begin(), everyone.end(), 0);
  const Part own = part_of(problem.bytes(), problem.element(), size_, rank_);
  switch (problem.collective) {
    case Collective::kAllReduce:
      reduce_part(call, own.offset, own.bytes, everyone, own.offset, stream);
      break;
    case Collective::kReduce:
      reduce_part(call, own.offset, own.bytes, {problem.root}, own.offset, stream);
      break;
    case Collective::kReduceScatter:
      reduce_part(call, problem.input_offset(0, rank_, size_), problem.part_bytes(0, rank_, size_), {rank_}, 0, stream);
      break;
    case Collective::kBroadcast:
      copy_part(call, problem.root, stream);
      break;
    default:
      for (const int from : everyone) {
        copy_part(call, from, stream);
      }
  }
  check_device(api_.event_record(done_, stream), "recording an event");
}

// Reduces bytes [offset, offset + bytes) of all ranks' inputs into the outputs of the ranks `writers`.
void DevicePeers::reduce_part(const DeviceCall& call, std::int64_t offset, std::int64_t bytes,
                              const std::vector<int>& writers, std::int64_t output_offset, void* stream) {
  const Problem& problem = call.problem;
  std::vector<SpanCursor> from;
  std::vector<SpanCursor> to;
  for (int r = 0; r < size_; ++r) {
    from.emplace_back(Buffer::of(inputs_[r])).seek(offset);
  }
  for (const int r : writers) {
    to.emplace_back(Buffer::of(outputs_[r])).seek(output_offset);
  }
  DeviceReduction reduction{};
  reduction.dtype = problem.dtype;
  reduction.op = problem.op == Op::kPremulSum ? Op::kSum : problem.op;
  reduction.combination = Combination::kCanonical;
  reduction.finish = true;
  reduction.operand = size_;
  reduction.source_count = size_;
  reduction.destination_count = static_cast<int>(writers.size());
  while (bytes > 0) {
    std::int64_t length = bytes;
    for (const std::vector<SpanCursor>* cursors : {&from, &to}) {
      for (const SpanCursor& cursor : *cursors) {
        length = std::min(length, cursor.piece(bytes).bytes);
      }
    }
    if (length <= 0) {
      throw std::logic_error("arrays of ranks end before their collective does");
    }
    for (std::size_t r = 0; r < from.size(); ++r) {
      reduction.sources[r] = from[r].piece(length).data;
      from[r].advance(length);
    }
    for (std::size_t w = 0; w < to.size(); ++w) {
      reduction.destinations[w] = to[w].piece(length).data;
      to[w].advance(length);
    }
    reduction.count = length / problem.element();
    check_device(api_.reduce(&reduction, stream), "a reduction");
    bytes -= length;
  }
}

// Copies what this rank gets from rank `from`.
void DevicePeers::copy_part(const DeviceCall& call, int from, void* stream) {
  const Problem& problem = call.problem;
  const bool dense = problem.collective == Collective::kBroadcast;
  std::int64_t bytes = dense ? problem.bytes() : problem.part_bytes(from, rank_, size_);
  SpanCursor source(Buffer::of(inputs_[from]));
  SpanCursor target(Buffer::of(outputs_[rank_]));
  source.seek(dense ? 0 : problem.input_offset(from, rank_, size_));
  target.seek(dense ? 0 : problem.output_offset(from, rank_, size_));
  while (bytes > 0) {
    const std::int64_t length = std::min(source.piece(bytes).bytes, target.piece(bytes).bytes);
    if (length <= 0) {
      throw std::logic_error("arrays of ranks end before their collective does");
    }
    const Span piece = source.piece(length);
    if (std::byte* to = target.piece(length).data; to != piece.data) {
      check_device(api_.copy(to, piece.data, length, stream), "a copy");
    }
    source.advance(length);
    target.advance(length);
    bytes -= length;
  }
}

void DevicePeers::finish(void* stream) {
  CurrentDevice current;
  current.use(device_);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      check_device(api_.stream_wait(stream, peers_[r].done), "waiting for another rank");
    }
  }
  check_device(api_.event_record(all_done_, stream), "recording an event");
  used_ = true;
}

bool DevicePeers::wait(double seconds) const {
  const int code = await_all(seconds);
  if (code != kDeviceNotReady) {
    check_device(code, "waiting for the ranks");
  }
  return code == kDeviceOk;
}

// As event_query: kDeviceNotReady when the time is up.
int DevicePeers::await_all(double seconds) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int code = used_ ? kDeviceNotReady : kDeviceOk;
  while (code == kDeviceNotReady) {
    code = api_.event_query(all_done_);
    if (code == kDeviceNotReady) {
      if (std::chrono::steady_clock::now() >= until) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return code;
}

}  // namespace collectives
