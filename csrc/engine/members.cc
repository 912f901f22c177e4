// The members of a communicator, which may be any ranks of the world, in any order: how they are reached and how much
// went each way, what they are called, and whether they have left.

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "core/say.h"
#include "engine/communicator.h"
#include "engine/failure/words.h"
#include "memory/arena.h"
#include "transports/transport.h"

namespace collectives {

Communicator::Communicator(std::shared_ptr<Engine> engine, std::unique_ptr<Domain> domain, CommunicatorOptions options)
    : engine_(std::move(engine)),
      domain_(std::move(domain)),
      own_page_(domain_ != nullptr ? &domain_->control(options.topology.rank) : nullptr),
      options_(std::move(options)),
      mapped_links_(options_.topology.size),
      mail_links_(options_.topology.size),
      left_(options_.topology.size) {
  const Transport* mapped = domain_ != nullptr ? &find_transport(options_.mapped_transport) : nullptr;
  std::vector<Link*> links;
  std::vector<Link*> mail;
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && maps(r)) {
      mapped_links_[r] = mapped->over_domain(*domain_, r);
      mail_links_[r] = mapped->mail_over_domain(*domain_, r);
    }
    links.push_back(mapped_links_[r] != nullptr ? mapped_links_[r].get() : message_link(r));
    mail.push_back(mail_links_[r] != nullptr ? mail_links_[r].get() : message_link(r));
  }
  messages_ = std::make_unique<Messages>(options_.id, rank(), std::move(mail));
  active_.reserve(kMaxActive + 1);
  HostMemory* turns = options_.topology.crowded && domain_ != nullptr ? engine_->memory().get() : nullptr;
  executor_ = std::make_unique<Executor>(options_.id, rank(), domain_.get(), std::move(links), engine_->recorder(),
                                         turns, options_.members, readable());
  slots_.emplace(domain_.get(), *executor_);
  const std::lock_guard guard(engine_->lock());
  engine_->attach(this);
}

Communicator::~Communicator() {
  if (!engine_->forked()) {
    close();
    const std::lock_guard guard(engine_->lock());
    engine_->detach(this);
  }
}

int Communicator::member_of(int world_rank) const {
  if (options_.members.empty()) {
    return world_rank < size() ? world_rank : -1;
  }
  const auto found = std::find(options_.members.begin(), options_.members.end(), world_rank);
  return found == options_.members.end() ? -1 : static_cast<int>(found - options_.members.begin());
}

Peer& Communicator::peer(int member) const { return engine_->peers()[world_rank(member)]; }

// "rank 1 (world rank 3, host a, pid 17)".
std::string Communicator::who(int member) const {
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

// Host and process of the peer. Threads of one group have no entry for each other, and share both.
void Communicator::name_process(ErrorContext& context) const {
  if (context.peer < 0 || context.peer >= size()) {
    return;
  }
  if (options_.mapped_transport == "local") {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    context.host = host;
    context.pid = getpid();
    return;
  }
  context.host = peer(context.peer).host;
  context.pid = peer(context.peer).pid;
}

// "; ranks 2, 3 are in the same process", or nothing.
std::string Communicator::others_of_process(int member) const {
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

bool Communicator::has_left(int member) const {
  return left_[member] || (maps(member) && domain_->control(member).left.load(std::memory_order_acquire) != 0);
}

// Tells the ranks that share no memory with this one. Where all communicators are closed the good-bye has said it.
void Communicator::tell_left() {
  Report report;
  report.kind = ErrorKind::kNone;
  report.communicator = options_.id;
  report.reporter = rank();
  for (int r = 0; r < size(); ++r) {
    if (Link* link = message_link(r); link != nullptr) {
      link->abort(report.encode(kReportBytes));
    }
  }
}

void Communicator::abandon(const std::string& why) {
  if (engine_->forked()) {
    return;
  }
  const std::lock_guard guard(engine_->lock());
  if (closed_) {
    return;
  }
  fail(own_report(ErrorKind::kPeer,
                  who(rank()) + " ended by an uncaught exception: " + why + "; look at its own output for the cause"));
}

void Communicator::give_up(ErrorKind kind, const std::string& text) {
  if (engine_->forked()) {
    return;
  }
  const std::lock_guard guard(engine_->lock());
  if (closed_) {
    return;
  }
  fail(own_report(kind, text));
}

std::unique_ptr<CollectivesError> Communicator::failure() {
  const std::lock_guard guard(engine_->lock());
  engine_->watch_peers();
  look_after(Clock::now());
  try {
    heed_before_call();
  } catch (const CollectivesError& error) {
    return std::make_unique<CollectivesError>(error.kind(), error_ != nullptr ? error_->text : error.what(),
                                              error.context());
  }
  return nullptr;
}

void Communicator::use_heap(std::size_t bytes) {
  const std::lock_guard guard(engine_->lock());
  if (domain_ != nullptr && bytes > heap_used_) {
    const std::size_t before = heap_used_;
    heap_used_ = bytes;
    if (error_ != nullptr) {
      isolate_heap(before);
    }
  }
}

// A rank that was given up may be in the middle of writing into symmetric arrays, and may go on much later.
// from: what lies before is private already, and must not become so once more, from what the shared memory has.
void Communicator::isolate_heap(std::size_t from) {
  from = Arena::round_up(from);
  if (domain_ != nullptr && heap_used_ > from &&
      !engine_->memory()->isolate(domain_->heap(rank()) + from, heap_used_ - from)) {
    say("collectives: warning: " + who(rank()) + ": the system has not made " + std::to_string(heap_used_) +
        " bytes of symmetric memory private; ranks that were given up may still write there\n");
  }
}

void Communicator::forget_links() {
  for (int r = 0; r < size(); ++r) {
    if (Link* link = message_link(r); link != nullptr) {
      link->forget(options_.id);
    }
  }
}

Link* Communicator::message_link(int member) const {
  return member == rank() || maps(member) ? nullptr : peer(member).link.get();
}

std::map<std::string, std::int64_t> Communicator::bytes_by_transport() const {
  std::map<std::string, std::int64_t> bytes;
  if (domain_ != nullptr) {
    bytes[options_.mapped_transport] = mapped_bytes_;
    for (const auto& link : mapped_links_) {
      bytes[options_.mapped_transport] += link != nullptr ? link->bytes_sent : 0;
    }
    for (const auto& link : mail_links_) {
      bytes[options_.mapped_transport] += link != nullptr ? link->bytes_sent : 0;
    }
  }
  for (int r = 0; r < size(); ++r) {
    if (const Link* link = message_link(r); link != nullptr) {
      bytes[std::string(link->transport())] += executor_->sent(r) + messages_->sent(r);
    }
  }
  return bytes;
}

// How the memory of each member can be read.
std::vector<Reading::Source> Communicator::readable() const {
  std::vector<Reading::Source> sources(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    if (r == rank() || !maps(r)) {
      continue;
    }
    const Peer& of = peer(r);
    // Of each other process there are two descriptors, which only its first rank has; of this one there are none.
    const Peer& process = of.process >= 0 ? engine_->peers()[static_cast<std::size_t>(of.process)] : of;
    if (process.control_fd < 0) {
      sources[static_cast<std::size_t>(r)] = {getpid(), -1};
    } else if (process.pid_fd >= 0) {  // without it nobody knows whose number that is
      sources[static_cast<std::size_t>(r)] = {of.pid, process.pid_fd};
    }
  }
  return sources;
}

}  // namespace collectives
