#include "engine/executor/link_steps.h"

#include <algorithm>

#include "cpu/spin.h"
#include "engine/executor/data_steps.h"

namespace collectives {

void LinkSteps::post(Work& work, const Step& step) {
  const auto& peers = work.plan->peers;
  const auto position = std::find(peers.begin(), peers.end(), step.peer) - peers.begin();
  Stream& stream = *work.streams[position];
  if (step.kind == StepKind::kSend) {
    SendRequest& request = work.sends.emplace_back();
    request.remaining = step.length;
    request.token = step.length == 0;
    if (!request.token) {
      request.source = DataSteps::cursor(work, work.places.operands[step.sources.begin], step.length);
    }
    stream.sends.push_back(&request);
    return;
  }
  ReceiveRequest& request = work.receives.emplace_back();
  request.remaining = step.length;
  request.token = step.length == 0;
  request.element = work.plan->problem.element();
  if (!request.token) {
    request.destination = DataSteps::cursor(work, work.places.operands[step.destinations.begin], step.length);
  }
  if (!request.token && step.kind == StepKind::kReceiveReduce) {
    request.source = DataSteps::cursor(work, work.places.operands[step.sources.begin], step.length);
    request.source_first = step.own_first;
    request.reduce = step.finish ? work.plan->reduce_finish : work.plan->reduce;
    request.divisor = work.divisor;
  }
  stream.receives.push_back(&request);
}

// Drives the links once.
Look LinkSteps::settle(Work& work, bool sends) {
  bool outstanding = false;
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    Stream& stream = *work.streams[i];
    const int peer = work.stream_peers[i];
    if (!stream.sends.empty() || !stream.receives.empty()) {
      pool_.links()[peer]->progress();
    }
    if (stream.peer_seen && check_.differs(peer, stream.peer_signature, work)) {
      return Look::kDiffers;
    }
    outstanding = outstanding || !(sends ? stream.sends.empty() : stream.receives.empty());
  }
  if (outstanding) {
    return Look::kNotYet;
  }
  // Nothing refers to these requests any more.
  if (!sends) {
    work.receives.clear();
  }
  return Look::kThere;
}

Look LinkSteps::await(Work& work, bool sends, int spins) {
  Look seen = settle(work, sends);
  for (int i = 0; seen == Look::kNotYet && i < spins; ++i) {
    relax();
    seen = settle(work, sends);
  }
  return seen;
}

void LinkSteps::add_missing(const Work& work, std::vector<int>& ranks) {
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    if (!work.streams[i]->receives.empty() || !work.streams[i]->sends.empty()) {
      ranks.push_back(work.stream_peers[i]);
    }
  }
}

bool LinkSteps::find_mismatch(Work& work, const std::vector<int>& mapped_peers) {
  const std::vector<Link*>& links = pool_.links();
  for (int r = 0; !work.plan->peers.empty() && r < static_cast<int>(links.size()); ++r) {
    const bool known = std::find(work.stream_peers.begin(), work.stream_peers.end(), r) != work.stream_peers.end();
    const bool mapped = std::find(mapped_peers.begin(), mapped_peers.end(), r) != mapped_peers.end();
    if (links[r] != nullptr && !known && !mapped) {
      pool_.open_stream(work, r);
    }
  }
  for (std::size_t i = 0; i < work.streams.size(); ++i) {
    if (work.streams[i]->peer_seen && check_.differs(work.stream_peers[i], work.streams[i]->peer_signature, work)) {
      return true;
    }
  }
  return false;
}

}  // namespace collectives
