// What the engine hears of other ranks, and which of its communicators it concerns; numbers of communicators.

#include <poll.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "runtime/communicator.h"
#include "runtime/engine.h"

namespace collectives {

void Engine::lose(Peer& peer, Peer::State state, const std::string& why) {
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
    const bool there = peer.state == Peer::State::kThere;
    descriptors.push_back({there ? peer.control_fd : -1, POLLIN, 0});
    descriptors.push_back({there ? peer.pid_fd : -1, POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), 0);
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& peer = peers_[r];
    const std::size_t first = peer.process < 0 ? r : static_cast<std::size_t>(peer.process);
    if (peer.state == Peer::State::kThere &&
        (descriptors[2 * first].revents != 0 || descriptors[2 * first + 1].revents != 0)) {
      const bool left = std::all_of(communicators_.begin(), communicators_.end(), [&](const Communicator* c) {
        const int member = c->member_of(peer.rank);
        return member < 0 || c->closed() || c->has_left(member);
      });
      lose(peer, left ? Peer::State::kLeft : Peer::State::kDead, left ? "it has left the group" : "it died");
    }
  }
  progress_links();
  hear_links();
}

void Engine::progress_links() {
  for (Peer& peer : peers_) {
    if (peer.state == Peer::State::kThere && peer.link != nullptr) {
      peer.link->progress();
    }
  }
}

// Reports about communicators that this rank has closed, or has never had, are of no use any more.
void Engine::heard(int rank, const Report& report) {
  if (const auto claim = claims_.find(report.communicator); claim != claims_.end()) {
    claim->second.emplace_back(rank, report);
    return;
  }
  for (Communicator* communicator : communicators_) {
    if (communicator->options().id == report.communicator) {
      communicator->reported(rank, report);
    }
  }
}

// What links have reported besides data.
void Engine::hear_links() {
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) {
      continue;
    }
    for (LinkEvent event = peer.link->event(); event.kind != LinkEvent::Kind::kNone; event = peer.link->event()) {
      if (event.kind == LinkEvent::Kind::kAborted) {
        if (const Report report = Report::decode(event.text); report.readable()) {
          heard(peer.rank, report);
        } else if (peer.state == Peer::State::kThere) {
          lose(peer, Peer::State::kDead,
               "link to rank " + std::to_string(peer.rank) + ": malformed report of " +
                   std::to_string(event.text.size()) + " bytes");
        }
      } else if (peer.state == Peer::State::kThere) {
        const bool left = event.kind == LinkEvent::Kind::kClosed;
        lose(peer, left ? Peer::State::kLeft : Peer::State::kDead, left ? "it has left the group" : event.text);
      }
    }
  }
}

std::uint32_t Engine::propose_number() {
  // The two highest bits are not part of the number.
  constexpr std::uint32_t kNumbers = std::uint32_t{1} << 30;
  if (next_number_ >= kNumbers) {
    throw CollectivesError(ErrorKind::kGeneric,
                           "this rank has made " + std::to_string(kNumbers) + " communicators; start the job again",
                           {rank_, -1, "", -1, "", -1});
  }
  return next_number_++;
}

bool Engine::claim_number(std::uint32_t number) {
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
