#include "engine/messages.h"

#include <utility>

namespace collectives {

Messages::Messages(std::uint32_t communicator, int rank, std::vector<Link*> links)
    : communicator_(communicator),
      rank_(rank),
      links_(std::move(links)),
      with_(links_.size(), 0),
      sent_(links_.size(), 0) {}

StreamKey Messages::next_key(const Message& message) {
  const bool upward = message.sending == (rank_ < message.peer);
  const std::uint64_t number = counts_[{message.peer, message.tag, message.sending}]++;
  return {communicator_ | kMessageBit | (upward ? kUpwardBit : 0),
          static_cast<std::uint64_t>(message.tag) << kTagShift | number};
}

void Messages::start(const std::shared_ptr<Work>& work) {
  work->listed = active_.insert(active_.end(), work);  // first: it is ended with all others if something fails here
  ++with_[work->message.peer];
  work->state.store(WorkState::kActive, std::memory_order_relaxed);
  Stream& stream = *work->streams.emplace_back(std::make_unique<Stream>());
  work->stream_peers.push_back(work->message.peer);
  stream.key = next_key(work->message);
  stream.signature = work->signature;
  stream.changed = &changed_;
  stream.owner = work.get();
  if (work->message.sending) {
    SendRequest& request = work->sends.emplace_back();
    request.source = SpanCursor(work->input);
    request.source.seek(0);
    request.remaining = work->input.bytes;
    request.token = request.remaining == 0;
    stream.sends.push_back(&request);
  } else {
    ReceiveRequest& request = work->receives.emplace_back();
    request.destination = SpanCursor(work->output);
    request.destination.seek(0);
    request.remaining = work->output.bytes;
    request.token = request.remaining == 0;
    stream.receives.push_back(&request);
  }
  links_[work->message.peer]->open(stream);
}

bool Messages::progress() {
  bool moved = false;
  for (std::size_t r = 0; r < links_.size(); ++r) {
    // A socket is read by the engine when nothing is expected of it here.
    if (links_[r] != nullptr && (links_[r]->descriptor() < 0 || with_[r] > 0)) {
      moved = links_[r]->progress() || moved;
    }
  }
  return moved;
}

std::shared_ptr<Work> Messages::next_changed() {
  Stream* const stream = changed_.front();
  if (stream == nullptr) {
    return nullptr;
  }
  IntrusiveList<Stream>::remove(*stream);
  return *static_cast<Work*>(stream->owner)->listed;
}

Progress Messages::look(const Work& work) {
  const Stream& stream = *work.streams[0];
  if (stream.peer_seen && !(stream.peer_signature == work.signature)) {
    return Progress::kMismatch;
  }
  const bool done = work.message.sending ? work.sends[0].done : work.receives[0].done;
  return done ? Progress::kDone : Progress::kBlocked;
}

void Messages::end(Work& work) {
  if (work.message.sending && !work.sends.empty() && work.sends[0].done) {
    sent_[work.message.peer] += work.input.bytes;
  }
  if (!work.streams.empty()) {
    links_[work.message.peer]->close(*work.streams[0]);
    IntrusiveList<Stream>::remove(*work.streams[0]);
  }
  work.streams.clear();
  work.stream_peers.clear();
  work.sends.clear();
  work.receives.clear();
  --with_[work.message.peer];
  active_.erase(work.listed);
}

}  // namespace collectives
