#include "engine/executor/stream_pool.h"

#include <utility>

#include "core/grow.h"

namespace collectives {
namespace {

// Larger scratch areas, and more of them, are not kept for later calls, which may need none. What the other ranks of 8
// give one at a time over links (Limits::exchange_bytes) is smaller.
constexpr std::size_t kKeepScratchBytes = 8 << 20;
constexpr std::size_t kKeepScratch = 4;
constexpr std::size_t kKeepStreams = 64;

}  // namespace

StreamPool::StreamPool(std::uint32_t communicator, std::vector<Link*> links)
    : communicator_(communicator), links_(std::move(links)), sent_(links_.size(), 0) {
  // So that release() never allocates.
  spare_scratch_.reserve(kKeepScratch);
  spare_streams_.reserve(kKeepStreams);
}

void StreamPool::acquire(Work& work) {
  if (work.plan->schedule.scratch_bytes > 0) {
    acquire_scratch(work);
  }
  for (const int peer : work.plan->peers) {
    open_stream(work, peer);
  }
}

void StreamPool::acquire_scratch(Work& work) {
  const auto bytes = static_cast<std::size_t>(work.plan->schedule.scratch_bytes);
  if (!spare_scratch_.empty()) {
    work.scratch = std::move(spare_scratch_.back());
    spare_scratch_.pop_back();
  }
  if (work.scratch.size() < bytes) {
    work.scratch.resize(bytes);
  }
  work.base_of(Region::kScratch) = reinterpret_cast<std::uintptr_t>(work.scratch.data());
}

Stream& StreamPool::add_stream(Work& work, int peer) {
  if (spare_streams_.empty()) {
    spare_streams_.push_back(std::make_unique<Stream>());
  }
  make_room(work.stream_peers);  // both lists grow, or neither
  Stream& stream = *work.streams.emplace_back(std::move(spare_streams_.back()));
  spare_streams_.pop_back();
  work.stream_peers.push_back(peer);
  stream.key = {communicator_, work.sequence};
  stream.signature = work.signature;
  return stream;
}

void StreamPool::release(Work& work) {
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    std::unique_ptr<Stream>& stream = work.streams[i];
    links_[work.stream_peers[i]]->close(*stream);
    sent_[work.stream_peers[i]] += stream->bytes_sent;
    if (spare_streams_.size() < kKeepStreams) {
      stream->reset();
      spare_streams_.push_back(std::move(stream));
    }
  }
  work.streams.clear();
  work.stream_peers.clear();
  work.sends.clear();
  work.receives.clear();
  work.flat.clear();
  // Not earlier: a link that is closed in the middle of a frame sends the rest of it from this memory.
  if (spare_scratch_.size() < kKeepScratch && !work.scratch.empty() && work.scratch.size() <= kKeepScratchBytes) {
    spare_scratch_.push_back(std::move(work.scratch));
  }
  work.scratch = {};
}

}  // namespace collectives
