#include "engine/members.h"

#include <unistd.h>

#include <algorithm>

#include "engine/failure/words.h"

namespace collectives {

CostModel CommunicatorOptions::costs() const {
  const auto cost = [](const Transport* transport) { return transport != nullptr ? transport->cost : LinkCost(); };
  CostModel model = CostModel::of(topology, cost(within), cost(between));
  measured.apply(topology, model);
  return model;
}

Members::Members(Engine& engine, const Domain* domain, const CommunicatorOptions& options)
    : engine_(engine),
      domain_(domain),
      options_(options),
      mapped_links_(options.topology.size),
      mail_links_(options.topology.size),
      left_(options.topology.size) {
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && maps(r)) {
      mapped_links_[r] = options_.within->over_domain(*domain_, r);
      mail_links_[r] = options_.within->mail_over_domain(*domain_, r);
    }
  }
}

bool Members::any_other_is_there() const {
  bool found = size() == 1;
  for (int r = 0; r < size() && !found; ++r) {
    found = r != rank() && is_there(r);
  }
  return found;
}

int Members::member_of(int world_rank) const {
  if (options_.members.empty()) {
    return world_rank < size() ? world_rank : -1;
  }
  const auto found = std::find(options_.members.begin(), options_.members.end(), world_rank);
  return found == options_.members.end() ? -1 : static_cast<int>(found - options_.members.begin());
}

Link* Members::process_link(int member) const {
  return member == rank() || maps(member) ? nullptr : peer(member).link.get();
}

std::vector<Link*> Members::links_or(const std::vector<std::unique_ptr<Link>>& mapped) const {
  std::vector<Link*> links;
  for (int r = 0; r < size(); ++r) {
    links.push_back(mapped[r] != nullptr ? mapped[r].get() : process_link(r));
  }
  return links;
}

std::int64_t Members::bytes_over_mapped_links() const {
  std::int64_t bytes = 0;
  for (const auto* links : {&mapped_links_, &mail_links_}) {
    for (const auto& link : *links) {
      bytes += link != nullptr ? link->bytes_sent : 0;
    }
  }
  return bytes;
}

void Members::send_text(const std::string& text) const {
  for (int r = 0; r < size(); ++r) {
    if (Link* link = process_link(r); link != nullptr && peer(r).state == Peer::State::kThere) {
      link->send_control(text);
    }
  }
}

void Members::forget_links() const {
  for (int r = 0; r < size(); ++r) {
    if (Link* link = process_link(r); link != nullptr) {
      link->forget(options_.id);
    }
  }
}

std::vector<Reading::Source> Members::readable() const {
  std::vector<Reading::Source> sources(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || !maps(r)) {
      continue;
    }
    const Peer& of = peer(r);
    // Of each other process there are two descriptors, which only its first rank has; of this one there are none.
    const Peer& process = of.process >= 0 ? engine_.peers()[static_cast<std::size_t>(of.process)] : of;
    if (process.control_fd < 0) {
      sources[static_cast<std::size_t>(r)] = {getpid(), -1};
    } else if (process.pid_fd >= 0) {  // without it the number may be that of another process by now
      sources[static_cast<std::size_t>(r)] = {of.pid, process.pid_fd};
    }
  }
  return sources;
}

std::string Members::describe(int member) const {
  if (member < 0 || member >= size()) {
    return "an unknown rank";
  }
  std::string details;
  const auto add = [&](const std::string& detail) { details += (details.empty() ? " (" : ", ") + detail; };
  if (world_rank(member) != member) {
    add("world rank " + std::to_string(world_rank(member)));
  }
  if (const Peer& process = peer(member); process.pid > 0) {
    if (!process.host.empty()) {
      add("host " + process.host);
    }
    add("pid " + std::to_string(process.pid));
  }
  return "rank " + std::to_string(member) + details + (details.empty() ? "" : ")");
}

std::string Members::describe(const std::vector<int>& members) const {
  std::vector<std::string> list;
  for (const int member : members) {
    list.push_back(describe(member));
  }
  return join(list);
}

std::string Members::others_of_process(int member) const {
  std::vector<std::string> others;
  for (int r = 0; r < size(); ++r) {
    if (r != member && peer(member).process >= 0 && peer(r).process == peer(member).process) {
      others.push_back(std::to_string(r));
    }
  }
  if (others.empty()) {
    return "";
  }
  return (others.size() == 1 ? "; rank " + others[0] + " is" : "; ranks " + join(others) + " are") +
         " in the same process";
}

// Threads of one process have no entries for each other, and share its host and number.
void Members::name_process(ErrorContext& context) const {
  if (context.peer < 0 || context.peer >= size()) {
    return;
  }
  if (in_one_process()) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    context.host = host;
    context.pid = getpid();
    return;
  }
  context.host = peer(context.peer).host;
  context.pid = peer(context.peer).pid;
}

int Members::thread_of(int member) const {
  const std::uint32_t caller = maps(member) ? domain_->control(member).caller.load(std::memory_order_relaxed) : 0;
  if (caller != 0) {
    return static_cast<int>(caller);
  }
  return in_one_process() ? -1 : peer(member).pid;  // the main thread has the number of the process
}

}  // namespace collectives
