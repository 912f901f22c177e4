#include "engine/messages.h"

#include <utility>

#include "engine/record.h"

namespace collectives {

Messages::Messages(std::uint32_t communicator, int rank, std::vector<Link*> links, Recorder& recorder)
    : communicator_(communicator),
      rank_(rank),
      links_(std::move(links)),
      recorder_(recorder),
      with_(links_.size(), 0),
      sent_(links_.size(), 0),
      begun_(links_.size()) {
  links_[rank_] = &own_;
}

std::uint64_t Messages::count(const Message& message) const {
  const auto found = counts_.find({message.peer, message.tag, message.sending});
  return found == counts_.end() ? 0 : found->second;
}

// The name of the message of that number among those to, or from, the rank with the tag.
StreamKey Messages::key_of(const Message& message, std::uint64_t number) const {
  const bool upward = message.sending == (rank_ < message.peer);
  return {communicator_ | kMessageBit | (upward ? kUpwardBit : 0),
          static_cast<std::uint64_t>(message.tag) << kTagShift | number};
}

void Messages::start(const std::shared_ptr<Work>& work) {
  work->listed = active_.insert(active_.end(), work);  // first: it is ended with all others if something fails here
  const Message message = work->message;
  if (message.peer != Message::kAny) {
    ++with_[message.peer];
  }
  work->state.store(WorkState::kActive, std::memory_order_relaxed);
  if (message.sending) {
    open(*work);
    if (message.peer == rank_) {
      match(rank_);  // before a message of another rank takes the receive for which a blocking send was allowed
    }
    return;
  }
  open_freed();
  if (!unmatched_.has(message.tag)) {
    if (message.peer != Message::kAny) {
      open(*work);
      return;
    }
    if (const auto incoming = find(Message::kAny, message.tag); incoming) {
      take(*work, incoming->source);
      return;
    }
  }
  wait_for_turn(*work);
}

void Messages::open(Work& work) {
  const Message& message = work.message;
  Stream& stream = *work.streams.emplace_back(std::make_unique<Stream>());
  work.stream_peers.push_back(message.peer);
  stream.key = key_of(message, counts_[{message.peer, message.tag, message.sending}]++);
  stream.signature = work.signature;
  stream.changed = &changed_;
  stream.owner = &work;
  if (message.sending) {
    SendRequest& request = work.sends.emplace_back();
    request.source = SpanCursor(work.input);
    request.source.seek(0);
    request.remaining = work.input.bytes;
    request.token = request.remaining == 0;
    stream.sends.push_back(&request);
  } else {
    ReceiveRequest& request = work.receives.emplace_back();
    request.destination = SpanCursor(work.output);
    request.destination.seek(0);
    request.remaining = work.output.bytes;
    request.token = request.remaining == 0;
    stream.receives.push_back(&request);
  }
  links_[message.peer]->open(stream);
}

void Messages::wait_for_turn(Work& work) {
  if (!unmatched_.any()) {
    listen(true);
  }
  unmatched_.add(work);
}

void Messages::listen(bool on) {
  for (std::size_t r = 0; r < links_.size(); ++r) {
    if (links_[r] != nullptr) {
      links_[r]->listen(communicator_, on ? &begun_[r] : nullptr);
    }
    begun_[r].clear();
  }
}

// The receive from any rank gets the next message of that one.
void Messages::take(Work& work, int source) {
  const bool waited = unmatched_.any();
  unmatched_.remove(work);
  if (waited && !unmatched_.any()) {
    listen(false);
  }
  work.message.peer = source;
  ++with_[source];
  describe_to(recorder_, work, communicator_);
  recorder_.waits(work);
  open(work);
}

// Receives from given ranks that have none from any rank before them any more.
void Messages::open_freed() {
  while (Work* const work = unmatched_.next_free()) {
    unmatched_.remove(*work);
    open(*work);
  }
}

// Gives the messages of the rank that have begun to the receives that wait.
bool Messages::match(int source) {
  open_freed();
  std::vector<StreamKey> keys;
  keys.swap(begun_[source]);
  bool matched = false;
  for (const StreamKey& key : keys) {
    const int tag = static_cast<int>(key.sequence >> kTagShift);
    Work* const work = unmatched_.first(tag);
    // The name is another one where a receive has taken the message meanwhile, and where the peer awaits a message.
    if (work != nullptr && key == next_received(source, tag)) {
      take(*work, source);
      open_freed();
      matched = true;
    }
  }
  return matched;
}

bool Messages::match_all() {
  open_freed();
  bool matched = false;
  for (int r = 0; unmatched_.any() && r < static_cast<int>(links_.size()); ++r) {
    matched = (!begun_[r].empty() && match(r)) || matched;
  }
  return matched;
}

bool Messages::awaits_own(int tag) {
  match_all();
  return unmatched_.has(tag) || count({rank_, tag, false}) > count({rank_, tag, true});
}

std::optional<Incoming> Messages::find(int source, int tag) {
  match_all();
  std::optional<Incoming> first;
  std::uint64_t order = 0;
  const int begin = source == Message::kAny ? 0 : source;
  const int end = source == Message::kAny ? static_cast<int>(links_.size()) : source + 1;
  for (int r = begin; r < end; ++r) {
    if (links_[r] == nullptr) {
      continue;
    }
    if (const auto arrival = links_[r]->arrival(next_received(r, tag)); arrival && (!first || arrival->order < order)) {
      first = Incoming{r, arrival->signature};
      order = arrival->order;
    }
  }
  return first;
}

bool Messages::progress() {
  bool moved = false;
  const bool all = unmatched_.any() || probes_ > 0;
  for (std::size_t r = 0; r < links_.size(); ++r) {
    // A socket is read by the engine when nothing is expected of it here, and the own link then has nothing to do.
    const bool is_own = static_cast<int>(r) == rank_;
    if (links_[r] != nullptr && (with_[r] > 0 || all || (!is_own && links_[r]->descriptor() < 0))) {
      moved = links_[r]->progress() || moved;
    }
  }
  return (!unmatched_.empty() && match_all()) || moved;
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
  if (work.streams.empty()) {
    return Progress::kBlocked;  // its turn has not come
  }
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
  const bool waited = unmatched_.any();
  unmatched_.remove(work);
  if (waited && !unmatched_.any()) {
    listen(false);
  }
  work.streams.clear();
  work.stream_peers.clear();
  work.sends.clear();
  work.receives.clear();
  if (work.message.peer != Message::kAny) {
    --with_[work.message.peer];
  }
  active_.erase(work.listed);
}

}  // namespace collectives
