#include "engine/groups/shrink.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/say.h"
#include "engine/communicator.h"
#include "engine/failure/words.h"

namespace collectives {

void Shrinking::begin(double patience) {
  parent_.refuse_after_fork();
  const std::lock_guard guard(parent_.engine()->lock());
  if (parent_.closed()) {
    raise(ErrorKind::kClosed, -1, "the communicator is closed; shrink() comes before close()");
  }
  if (running_ || used_) {
    raise(ErrorKind::kGeneric, -1,
          used_ ? "this communicator has been shrunk already; go on with the communicator that shrink() has returned"
                : "another thread is in shrink() of this communicator");
  }
  if (Note::words(parent_.size()) > kNoteWords) {
    raise(ErrorKind::kGeneric, -1, "a communicator of " + std::to_string(parent_.size()) + " ranks is too large");
  }
  refuse_left_out();
  if (agreement_ == nullptr) {
    reserve();  // may throw: another call begins anew
    read_.assign(parent_.size(), 0);
    received_.resize(parent_.size());
    agreement_ = std::make_unique<Agreement>(parent_.rank(), parent_.size());
  }
  patience_ = patience;
  running_ = true;
  agreement_->join(Clock::now(), patience, number_, reserved_);
}

// Takes memory for the segment of the new communicator.
void Shrinking::reserve() {
  number_ = parent_.engine()->own_number();
  if (parent_.domain() == nullptr) {
    return;
  }
  const auto gone = [&](int w) { return parent_.engine()->peers()[w].state != Peer::State::kThere; };
  const std::shared_ptr<HostMemory>& memory = parent_.engine()->memory();
  std::optional<std::size_t> offset;
  for (const bool heap : {true, false}) {
    const SegmentLayout layout(parent_.size(), memory->limits(), heap ? memory->group_heap_bytes() : 0);
    offset = offset ? offset : memory->allocate(layout.total, layout.heap, number_, gone);
    reserved_.heap = reserved_.heap || (heap && offset);
  }
  reserved_.room = offset.has_value();
  if (offset) {
    reserved_.offset = *offset;
    segment_ = std::make_shared<GroupSegment>(memory, *offset);
  }
}

bool Shrinking::wait(double seconds) {
  const std::lock_guard guard(parent_.engine()->lock());
  return parent_.engine()->wait([&] { return step(); }, seconds);
}

bool Shrinking::step() {
  listen();
  if (agreement_->step(Clock::now())) {
    publish();
  }
  return agreement_->decided() || agreement_->failure() != Agreement::Failure::kNone;
}

// Reads the notes of the others, then looks which have ended: what a rank wrote before it ended counts.
void Shrinking::listen() {
  const Clock::time_point now = Clock::now();
  for (int m = 0; m < parent_.size(); ++m) {
    if (m == parent_.rank()) {
      continue;
    }
    const Peer& peer = parent_.members().peer(m);
    const bool left = parent_.members().has_left(m);
    if (parent_.members().maps(m)) {
      if (const std::optional<Note> note = board(m)) {
        agreement_->receive(m, *note, now);
      }
    } else if (!received_[m].empty()) {
      if (const std::optional<Note> note = Note::decode(received_[m], parent_.size())) {
        agreement_->receive(m, *note, now);
      }
      received_[m].clear();
    }
    if (left || (peer.state != Peer::State::kThere && peer.proven)) {
      agreement_->mark_dead(m);
    } else if (peer.state != Peer::State::kThere) {
      agreement_->mark_lost(m);
    }
  }
}

// The note of a member that shares memory with this rank, when it is new.
std::optional<Note> Shrinking::board(int member) {
  const auto& published = parent_.domain()->control(member).note;
  if (published.edition.load(std::memory_order_acquire) == read_[member]) {
    return std::nullopt;
  }
  const auto [edition, words] = published.read(Note::words(parent_.size()));
  read_[member] = edition;
  return Note::decode(words, parent_.size());
}

void Shrinking::publish() {
  const std::vector<std::uint64_t> words = agreement_->note().encode();
  if (parent_.domain() != nullptr) {
    parent_.domain()->control(parent_.rank()).note.publish(words);
  }
  const std::string text = Note::write(parent_.options().id, words);
  for (int m = 0; m < parent_.size(); ++m) {
    if (m == parent_.rank()) {
      continue;
    }
    if (parent_.members().maps(m)) {
      parent_.domain()->wake(m);
    } else if (Link* link = parent_.members().process_link(m);
               link != nullptr && parent_.members().peer(m).state == Peer::State::kThere) {
      link->send_control(text);
    }
  }
}

void Shrinking::receive_note(int member, const std::vector<std::uint64_t>& words) {
  received_.resize(parent_.size());
  received_[member] = words;
}

void Shrinking::give_up() {
  if (parent_.engine()->forked()) {
    return;
  }
  const std::lock_guard guard(parent_.engine()->lock());
  running_ = false;
  if (!agreement_->decided()) {
    agreement_->withdraw();
    publish();
  }
}

std::unique_ptr<Communicator> Shrinking::finish() {
  RankSet left_out(parent_.size());
  {
    const std::lock_guard guard(parent_.engine()->lock());
    running_ = false;
    if (!agreement_->decided()) {
      agreement_->withdraw();
      publish();
      if (agreement_->failure() == Agreement::Failure::kHeldForDead) {
        raise(ErrorKind::kPeer, -1,
              "other ranks hold this one for dead, because their connection to it was closed; end this process");
      }
      const RankSet& silent = agreement_->silent();
      if (silent.empty()) {
        raise(ErrorKind::kDeadline, -1,
              "shrink: all ranks are here, but no majority of them hear each other; see which connections between "
              "their hosts are cut, and start the job again from a checkpoint");
      }
      int first = 0;
      while (!silent.has(first)) {
        ++first;
      }
      const int present = parent_.size() - silent.count() - agreement_->dead().count();
      raise(ErrorKind::kDeadline, first,
            "shrink: " + names(silent) + " did not answer within " + seconds_text(patience_) +
                " and is not known to have ended, and the " + std::to_string(present) + " of " +
                std::to_string(parent_.size()) +
                " ranks that are here are no majority, so others may have gone on; start the job again from a "
                "checkpoint, or call shrink() again on all ranks, with a longer timeout");
    }
    used_ = true;
    if (!agreement_->decision().ranks.has(parent_.rank())) {
      if (segment_ != nullptr) {
        segment_->cancel();
      }
      segment_.reset();
      leave_behind();
      raise_left_out(agreement_->decision().ranks);
    }
    leave_behind();
  }
  return make();
}

// When ranks go on without some that have not ended, no rank goes on with the old communicator.
void Shrinking::leave_behind() {
  RankSet behind(parent_.size());
  const RankSet& survivors = agreement_->decision().ranks;
  bool lowest = true;  // of the survivors
  for (int m = 0; m < parent_.size(); ++m) {
    lowest = lowest && (m >= parent_.rank() || !survivors.has(m));
    if (!survivors.has(m) && !agreement_->dead().has(m)) {
      behind.add(m);
    }
  }
  if (behind.empty()) {
    return;
  }
  const std::string text = "shrink: the other ranks go on without " + names(behind);
  if (lowest && survivors.has(parent_.rank())) {
    say("collectives: warning: " + parent_.members().describe_self() + ", " + text + ", which did not answer within " +
        seconds_text(patience_) + "\n");
  }
  int suspect = -1;
  for (int m = parent_.size(); m-- > 0;) {
    suspect = behind.has(m) ? m : suspect;
  }
  parent_.fail(parent_.report(ErrorKind::kPeer, suspect, text));
}

void Shrinking::check_early_notes() {
  if (!Engine::is_own_number(parent_.options().id) || parent_.completed() != 0 || running_ || parent_.failed() ||
      parent_.closed()) {
    return;
  }
  read_.resize(parent_.size());
  received_.resize(parent_.size());
  for (int m = 0; m < parent_.size(); ++m) {
    if (m == parent_.rank()) {
      continue;
    }
    const bool shrinks = parent_.members().maps(m)
                             ? parent_.domain()->control(m).note.edition.load(std::memory_order_acquire) != 0
                             : !received_[m].empty();
    if (!shrinks) {
      continue;
    }
    parent_.fail(parent_.report(
        ErrorKind::kPeer, m, parent_.members().describe(m) + " has lost another rank and shrinks this communicator"));
    return;
  }
}

void Shrinking::refuse_left_out() {
  if (agreement_ == nullptr) {
    read_.resize(parent_.size());
    received_.resize(parent_.size());
    parent_.engine()->watch_peers();
  }
  for (int m = 0; m < parent_.size(); ++m) {
    std::optional<Note> note;
    if (agreement_ != nullptr || m == parent_.rank()) {
      continue;
    }
    if (parent_.members().maps(m)) {
      note = board(m);
      read_[m] = 0;
    } else if (!received_[m].empty()) {
      note = Note::decode(received_[m], parent_.size());
    }
    if (note && note->decision.number != 0 && !note->decision.ranks.has(parent_.rank())) {
      raise_left_out(note->decision.ranks);
    }
  }
}

std::string Shrinking::names(const RankSet& ranks) const {
  std::vector<int> list;
  for (int m = 0; m < parent_.size(); ++m) {
    if (ranks.has(m)) {
      list.push_back(m);
    }
  }
  return parent_.members().describe(list);
}

void Shrinking::raise(ErrorKind kind, int peer, const std::string& text) const {
  ErrorContext context;
  context.rank = parent_.rank();
  context.peer = peer;
  context.collective = "shrink";
  throw CollectivesError(kind, parent_.members().describe_self() + ": " + text, context);
}

void Shrinking::raise_left_out(const RankSet& survivors) const {
  int first = 0;
  while (first + 1 < parent_.size() && !survivors.has(first)) {
    ++first;
  }
  raise(ErrorKind::kPeer, first,
        "the others (" + names(survivors) +
            ") went on without this rank, which did not answer them in time; end this process. They have given its "
            "place up, so the job goes on without it");
}

}  // namespace collectives
