// The members of a communicator: who they are, how each is reached, what errors call it, and whether it has left.
//
// They may be any ranks of the world, in any order. A member that shares memory with this rank is reached through the
// domain and has links of this communicator alone; any other is reached over the link of its process, which all
// communicators share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/network.h"
#include "core/topology.h"
#include "engine/engine.h"
#include "engine/executor/reading.h"
#include "memory/domain.h"
#include "predict/profile.h"
#include "predict/selector.h"
#include "schedule/algorithm.h"
#include "transports/transport.h"

namespace collectives {

struct CommunicatorOptions {
  std::uint32_t id = 0;      // the same on all members; the world has 0. Below 2^30
  std::vector<int> members;  // the rank in the world of each member; empty: the world itself
  Topology topology;
  Network network;
  std::vector<Override> overrides;     // of the choice of algorithms
  ProfileCosts measured;               // what a profile says in place of constants
  std::string profile;                 // which one, in words; empty: none
  const Transport* within = nullptr;   // of ranks that share memory; nullptr: none does
  const Transport* between = nullptr;  // of the others; nullptr: there are none
  bool threads = false;                // other ranks may be threads of this process
  double timeout_s = 600;
  double warn_s = 60;
  bool compare_shapes = true;  // of all_reduce, reduce and broadcast, not only lengths

  // What the ranks' calls cost, by the word of their transports and of the profile.
  CostModel costs() const;
};

class Members {
 public:
  // domain: nullptr where no rank is mapped. options: those of the communicator, which outlive this.
  Members(Engine& engine, const Domain* domain, const CommunicatorOptions& options);

  int rank() const { return options_.topology.rank; }
  int size() const { return options_.topology.size; }
  int world_rank(int member) const { return options_.members.empty() ? member : options_.members[member]; }
  // The member that is this rank of the world, -1 when it is none.
  int member_of(int world_rank) const;
  Peer& peer(int member) const { return engine_.peers()[world_rank(member)]; }

  // Whether this rank can address the member's memory.
  bool maps(int member) const { return domain_ != nullptr && domain_->has(member); }
  // The link to the process of a member that shares no memory with this rank, nullptr for the others.
  Link* process_link(int member) const;
  // The links for collectives, and those for messages: nullptr for this rank.
  std::vector<Link*> links() const { return links_or(mapped_links_); }
  std::vector<Link*> message_links() const { return links_or(mail_links_); }
  // Payload bytes that mapped links have sent.
  std::int64_t bytes_over_mapped_links() const;
  // Sends a failure report, or another short text, to each member that is there and shares no memory with this rank.
  void send_text(const std::string& text) const;
  // Drops what links hold of this communicator.
  void forget_links() const;
  // How the kernel reads the memory of each member.
  std::vector<Reading::Source> readable() const;

  bool has_left(int member) const {
    return left_[member] || (maps(member) && domain_->control(member).left.load(std::memory_order_acquire) != 0);
  }
  // A member that shares no memory with this rank has said that it left.
  void set_left(int member) { left_[member] = true; }
  bool is_there(int member) const { return !has_left(member) && peer(member).state == Peer::State::kThere; }
  // Whether any rank that this one could hear of is left: another, or in a group of one rank itself.
  bool any_other_is_there() const;

  // "rank 1 (world rank 3, host a, pid 17)".
  std::string describe(int member) const;
  std::string describe_self() const { return describe(rank()); }
  // Several of them, with commas.
  std::string describe(const std::vector<int>& members) const;
  // "; ranks 2, 3 are in the same process", or nothing.
  std::string others_of_process(int member) const;
  // Fills in the host and the process of context.peer.
  void name_process(ErrorContext& context) const;
  // Whether all members are threads of this process.
  bool in_one_process() const { return options_.within != nullptr && options_.within->reach == Reach::kProcess; }
  // The number of the thread that has made the member's last call, as its kernel counts threads; -1: not known.
  int thread_of(int member) const;

 private:
  std::vector<Link*> links_or(const std::vector<std::unique_ptr<Link>>& mapped) const;

  Engine& engine_;
  const Domain* domain_;
  const CommunicatorOptions& options_;
  std::vector<std::unique_ptr<Link>> mapped_links_;
  std::vector<std::unique_ptr<Link>> mail_links_;
  std::vector<bool> left_;  // members that have said over links that they have left
};

}  // namespace collectives
