// What the engine learns of other ranks, and which of its communicators it passes that to; numbers of communicators.

#include <poll.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float_environment.h"
#include "engine/communicator.h"
#include "engine/engine.h"
#include "engine/groups/note.h"

namespace collectives {

namespace {

// Numbers from here on are those of own_number(), of group_number(), and none.
constexpr std::uint32_t kOwnNumbers = std::uint32_t{1} << 29;
constexpr std::uint32_t kGroupNumbers = std::uint32_t{3} << 28;
constexpr std::uint32_t kEndOfNumbers = std::uint32_t{1} << 30;
// Communicators about which reports are kept although this rank does not know them yet.
constexpr std::size_t kMaxClaims = 1000;

}  // namespace

void Engine::lose(Peer& peer, Peer::State state, bool proven, const std::string& why) {
  peer.proven = proven;
  if (peer.state != Peer::State::kThere) {
    return;  // now it is sure
  }
  peer.state = state;
  peer.why = why;
  for (Communicator* communicator : communicators_) {
    communicator->peer_gone(peer);
  }
}

// Notices peers that died or left.
void Engine::watch_peers() {
  std::vector<pollfd> descriptors;
  for (const Peer& peer : peers_) {
    const bool there = peer.state == Peer::State::kThere || !peer.proven;
    descriptors.push_back({there ? peer.control_fd : -1, POLLIN, 0});
    descriptors.push_back({there ? peer.pid_fd : -1, POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), 0);
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& peer = peers_[r];
    const std::size_t first = peer.process < 0 ? r : static_cast<std::size_t>(peer.process);
    if ((peer.state == Peer::State::kThere || !peer.proven) &&
        (descriptors[2 * first].revents != 0 || descriptors[2 * first + 1].revents != 0)) {
      const bool left = std::all_of(communicators_.begin(), communicators_.end(), [&](const Communicator* c) {
        const int member = c->members().member_of(peer.rank);
        return member < 0 || c->closed() || c->members().has_left(member);
      });
      lose(peer, left ? Peer::State::kLeft : Peer::State::kDead, true, left ? "it has left the group" : "it died");
    }
  }
  progress_links();
  handle_link_events();
}

void Engine::progress_links() {
  const FloatEnvironment own;  // what comes may be reduced at once
  for (Peer& peer : peers_) {
    if (peer.state == Peer::State::kThere && peer.link != nullptr) {
      peer.link->progress();
    }
  }
}

// Reports about communicators that this rank has closed, or has never had, are of no use any more.
void Engine::on_report(int rank, const Report& report) {
  if (const auto claim = claims_.find(report.communicator); claim != claims_.end()) {
    claim->second.emplace_back(rank, report);
    return;
  }
  bool known = false;
  for (Communicator* communicator : communicators_) {
    if (communicator->options().id == report.communicator) {
      communicator->receive_report(rank, report);
      known = true;
    }
  }
  // Those that survive a communicator come to the next one at different times, without a claim.
  if (!known && is_own_number(report.communicator) && claims_.size() < kMaxClaims) {
    claims_[report.communicator].emplace_back(rank, report);
  }
}

// A note of a rank whose communicator shrinks (groups/note.h). The last of one that this rank does not have yet is
// kept: a decision is published only once.
void Engine::on_note(int rank, const std::string& text) {
  const std::optional<Note::Message> message = Note::read(text);
  if (!message) {
    return;
  }
  bool known = false;
  for (Communicator* communicator : communicators_) {
    if (communicator->options().id == message->communicator) {
      communicator->receive_note(rank, message->words);
      known = true;
    }
  }
  if (!known && is_own_number(message->communicator) && kept_notes_.size() < kMaxClaims) {
    kept_notes_[message->communicator][rank] = message->words;
  }
}

// What links have reported besides data.
void Engine::handle_link_events() {
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) {
      continue;
    }
    for (LinkEvent event = peer.link->event(); event.kind != LinkEvent::Kind::kNone; event = peer.link->event()) {
      if (event.kind == LinkEvent::Kind::kControlMessage) {
        if (event.text.starts_with(Note::kMark)) {
          on_note(peer.rank, event.text);
        } else if (event.text.starts_with(Board::kMark)) {
          board_.receive(peer.rank, event.text);
        } else if (const Report report = Report::decode(event.text); report.readable()) {
          on_report(peer.rank, report);
        } else if (peer.state == Peer::State::kThere) {
          lose(peer, Peer::State::kDead, false,
               "link to rank " + std::to_string(peer.rank) + ": malformed report of " +
                   std::to_string(event.text.size()) + " bytes");
        }
      } else if (peer.state == Peer::State::kThere) {
        const bool left = event.kind == LinkEvent::Kind::kClosed;
        lose(peer, left ? Peer::State::kLeft : Peer::State::kDead, left || event.ended,
             left ? "it has left the group" : event.text);
      }
    }
  }
}

std::uint32_t Engine::propose_number() {
  if (next_number_ >= kOwnNumbers) {
    throw CollectivesError(ErrorKind::kGeneric,
                           "this rank has made " + std::to_string(kOwnNumbers) + " communicators; start the job again",
                           {rank_, -1, "", -1, "", -1});
  }
  return next_number_++;
}

// The two highest bits are not part of the number.
std::uint32_t Engine::own_number() {
  const auto size = static_cast<std::uint32_t>(peers_.size());
  if (own_numbers_ >= (kGroupNumbers - kOwnNumbers) / size) {
    throw CollectivesError(
        ErrorKind::kGeneric,
        "this rank has called shrink() " + std::to_string(own_numbers_) + " times; start the job again",
        {rank_, -1, "", -1, "", -1});
  }
  return kOwnNumbers + own_numbers_++ * size + static_cast<std::uint32_t>(rank_);
}

bool Engine::is_own_number(std::uint32_t number) { return number >= kOwnNumbers && number < kGroupNumbers; }

std::uint32_t Engine::group_number() {
  const auto size = static_cast<std::uint32_t>(peers_.size());
  if (group_numbers_ >= (kEndOfNumbers - kGroupNumbers) / size) {
    throw CollectivesError(ErrorKind::kGeneric,
                           "this rank has given numbers to " + std::to_string(group_numbers_) +
                               " groups that their members made alone; start the job again",
                           {rank_, -1, "", -1, "", -1});
  }
  return kGroupNumbers + group_numbers_++ * size + static_cast<std::uint32_t>(rank_);
}

bool Engine::claim_number(std::uint32_t number) {
  if (number >= kGroupNumbers) {  // no other group ever has it
    if (number < kEndOfNumbers) {
      claims_[number];
    }
    return number < kEndOfNumbers;
  }
  next_number_ = std::max(next_number_, number + 1);
  if (number < least_number_) {
    return false;
  }
  least_number_ = number + 1;
  claims_[number];
  return true;
}

void Engine::end_claim(std::uint32_t number) { claims_.erase(number); }

}  // namespace collectives
