// The failure reports of a communicator: how ranks learn of each other's failures.
//
// Every rank publishes one report when it gives up: in its control page, for ranks that map its memory, and over the
// links to all others. A rank that fails because of such a report publishes one as well, because the
// rank that failed first may have died before all others had its report.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/failure/report.h"
#include "engine/in_flight.h"
#include "engine/members.h"
#include "engine/repeated_calls.h"
#include "memory/domain.h"

namespace collectives {

class FailureReports {
 public:
  // domain: nullptr where no rank is mapped. calls: a repeated call skips the checks that a known failure would fail,
  // so it is forgotten when there is one.
  FailureReports(Engine& engine, const Domain* domain, const CommunicatorOptions& options, Members& members,
                 const InFlight& in_flight, RepeatedCalls& calls);

  // A report of this rank about itself or another, to be filled in.
  Report make(ErrorKind kind, int suspect, std::string text) const;
  // Publishes the report of this rank, once.
  void publish(const Report& report);
  // Publishes where the suspect's Python code is, a moment later. Only ranks on other hosts wait for it.
  void publish_location(Report report, const std::string& found) const;

  // A report that a link has brought; kind kNone: the member has left in good order.
  void receive(int world_rank, const Report& report);
  // Looks for reports of ranks that map the memory of this one.
  void look();
  // Some rank that maps the memory of this one has published a report. All there is to ask after a work that uses no
  // link has been run from its start: no link can have brought one meanwhile.
  bool signalled() const { return own_page_ != nullptr && own_page_->aborted.load(std::memory_order_acquire) != 0; }
  // The first report of another rank that has been received, nullptr where there is none; and when that was.
  const Report* first() const { return first_.get(); }
  Clock::time_point received_at() const { return received_at_; }

  // The report of a member, where it has come. That of this rank is the one it has kept with keep_own().
  bool find(int member, Report* report) const;
  void keep_own(const Report& report) { received_[members_.rank()] = report; }
  // Those of all other members, after another look at the links.
  std::vector<std::optional<Report>> find_all();

  Engine& engine() const { return engine_; }
  const Members& members() const { return members_; }

 private:
  Report checked(const Report& report, int member) const;
  void set_first(const Report& report);

  Engine& engine_;
  const Domain* domain_;
  ControlPage* own_page_;  // nullptr where no rank is mapped
  const CommunicatorOptions& options_;
  Members& members_;
  const InFlight& in_flight_;
  RepeatedCalls& calls_;
  std::map<int, Report> received_;  // by member
  std::unique_ptr<Report> first_;
  Clock::time_point received_at_;
  bool published_ = false;
};

}  // namespace collectives
