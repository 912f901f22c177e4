#include "engine/failure/failure_reports.h"

#include <cstring>
#include <utility>

#include "cpu/fence.h"

namespace collectives {

FailureReports::FailureReports(Engine& engine, const Domain* domain, const CommunicatorOptions& options,
                               Members& members, const InFlight& in_flight, RepeatedCalls& calls)
    : engine_(engine),
      domain_(domain),
      own_page_(domain != nullptr ? &domain->control(members.rank()) : nullptr),
      options_(options),
      members_(members),
      in_flight_(in_flight),
      calls_(calls) {}

Report FailureReports::make(ErrorKind kind, int suspect, std::string text) const {
  Report report;
  report.kind = kind;
  report.communicator = options_.id;
  report.reporter = members_.rank();
  report.suspect = suspect;
  report.sequence = static_cast<std::int64_t>(in_flight_.completed());
  report.text = std::move(text);
  return report;
}

void FailureReports::publish(const Report& report) {
  if (published_) {
    return;
  }
  published_ = true;
  const std::string text = report.encode(kReportBytes);
  if (own_page_ != nullptr) {
    std::memcpy(own_page_->report, text.data(), text.size());
    // Release: the text before its length, and both before the notice below.
    own_page_->report_bytes.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
  }
  for (int r = 0; r < members_.size(); ++r) {
    if (r != members_.rank() && members_.maps(r)) {
      domain_->control(r).aborted.store(1, std::memory_order_release);
      domain_->wake(r);
    }
  }
  members_.send_text(text);
  // Before anything that the caller does when it sees the error: others may be reading its arrays, and look at the
  // notice after a read (Executor).
  full_fence();
}

void FailureReports::publish_location(Report report, const std::string& found) const {
  report.found = found;
  members_.send_text(report.encode(kReportBytes));
}

void FailureReports::receive(int world_rank, const Report& report) {
  const int member = members_.member_of(world_rank);
  if (member < 0) {
    return;
  }
  if (report.kind == ErrorKind::kNone) {
    members_.set_left(member);
    return;
  }
  received_[member] = checked(report, member);
  set_first(received_[member]);
}

void FailureReports::set_first(const Report& report) {
  if (first_ == nullptr) {
    first_ = std::make_unique<Report>(report);
    calls_.forget_last();
    received_at_ = Clock::now();
  }
}

void FailureReports::look() {
  if (first_ != nullptr || !signalled()) {
    return;
  }
  for (int r = 0; r < members_.size(); ++r) {
    Report report;
    if (r != members_.rank() && find(r, &report)) {
      set_first(report);
    }
  }
}

bool FailureReports::find(int member, Report* report) const {
  if (const auto found = received_.find(member); found != received_.end()) {
    *report = found->second;
    return true;
  }
  if (member < 0 || member >= members_.size() || !members_.maps(member)) {
    return false;
  }
  const ControlPage& page = domain_->control(member);
  const std::size_t bytes = page.report_bytes.load(std::memory_order_acquire);
  if (bytes == 0 || bytes > kReportBytes) {
    return false;
  }
  *report = checked(Report::decode(std::string(page.report, bytes)), member);
  return true;
}

std::vector<std::optional<Report>> FailureReports::find_all() {
  std::vector<std::optional<Report>> found(members_.size());
  for (int r = 0; r < members_.size(); ++r) {
    if (Link* link = members_.process_link(r); link != nullptr && members_.peer(r).state == Peer::State::kThere) {
      link->progress();
    }
  }
  engine_.handle_link_events();
  for (int r = 0; r < members_.size(); ++r) {
    if (Report report; r != members_.rank() && find(r, &report)) {
      found[r] = std::move(report);
    }
  }
  return found;
}

// What a member says, unless it makes no sense in this group: then that is the failure.
Report FailureReports::checked(const Report& report, int member) const {
  if (report.valid(members_.size()) && report.reporter == member) {
    return report;
  }
  return make(
      ErrorKind::kPeer, member,
      members_.describe(member) + " has sent a malformed report; look at its own output, and start the job again");
}

}  // namespace collectives
