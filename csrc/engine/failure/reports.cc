// How ranks hear of each other's failures: every rank leaves one report, in its control page and on its links.

#include <algorithm>
#include <cstring>
#include <thread>

#include "cpu/fence.h"
#include "engine/communicator.h"

namespace collectives {
namespace {

constexpr auto kReportPatience = std::chrono::seconds(1);
constexpr auto kGrace = std::chrono::milliseconds(200);

// What entry i of Work::counts is about; `work` is what this rank was at, or nullptr.
std::string subject(const Work* work, std::size_t i, int size) {
  if (work == nullptr || !has_parts(work->plan->problem.collective)) {
    const bool named = work != nullptr && work->details != nullptr && i < work->details->names.size();
    return "tensor " + std::to_string(i) + (named ? " ('" + work->details->names[i] + "')" : "");
  }
  const Collective collective = work->plan->problem.collective;
  const std::size_t ranks = static_cast<std::size_t>(size);
  const std::size_t parts = collective == Collective::kAllToAll ? ranks * ranks : ranks;
  const std::size_t tensors = std::max<std::size_t>(work->counts.size() / parts, 1);
  const std::size_t part = i / tensors;
  const std::string tensor = tensors > 1 ? " of tensor " + std::to_string(i % tensors) : std::string();
  if (collective == Collective::kAllToAll) {
    return "the part" + tensor + " that rank " + std::to_string(part / ranks) + " gives to rank " +
           std::to_string(part % ranks);
  }
  return "part " + std::to_string(part) + tensor;
}

// The shape that begins at `position` of a list of them, as Python writes it, "?" for a dimension that may differ;
// advances the position. Empty when the list was cut, as reports of very many tensors are.
std::string shape_text(const std::vector<std::int64_t>& shapes, std::size_t& position) {
  const auto dimensions = static_cast<std::size_t>(shapes[position++]);
  if (dimensions > shapes.size() - position) {
    return {};
  }
  std::string text = "(";
  for (std::size_t d = 0; d < dimensions; ++d) {
    text += d > 0 ? ", " : "";
    const std::int64_t length = shapes[position++];
    text += length < 0 ? "?" : std::to_string(length);
  }
  return text + (dimensions == 1 ? ",)" : ")");
}

std::string shape_difference(const Report& a, const Report& b, const Work* work, int size) {
  std::size_t at = 0;
  std::size_t bt = 0;
  for (std::size_t tensor = 0; at < a.shapes.size() && bt < b.shapes.size(); ++tensor) {
    const std::string left = shape_text(a.shapes, at);
    const std::string right = shape_text(b.shapes, bt);
    if (left.empty() || right.empty()) {
      return {};
    }
    if (left != right) {
      std::string text = "Shape mismatch in " + subject(work, tensor, size);  // as TensorFlow says it
      text.append(": rank ").append(std::to_string(a.reporter)).append(" has shape ").append(left);
      text.append(", rank ").append(std::to_string(b.reporter)).append(" has shape ").append(right);
      return text;
    }
  }
  return {};
}

// The tensors of a rank by name, where it gave any, and shape.
std::string list_text(const Report& report) {
  std::string text = "rank " + std::to_string(report.reporter) + " has [";
  std::size_t tensors = 0;
  for (std::size_t at = 0; tensors < report.names.size() || at < report.shapes.size(); ++tensors) {
    const std::string shape = at < report.shapes.size() ? shape_text(report.shapes, at) : std::string();
    if (shape.empty()) {
      at = report.shapes.size();  // the list was cut
    }
    const bool named = tensors < report.names.size();
    if (!named && shape.empty()) {
      break;
    }
    text += tensors > 0 ? ", " : "";
    text += named ? "'" + report.names[tensors] + "'" : "";
    text += named && !shape.empty() ? " " + shape : shape;
  }
  const std::size_t more = report.counts.size() - std::min(report.counts.size(), tensors);
  return text + (more > 0 ? " and " + std::to_string(more) + " more]" : "]");
}

// Which tensors, or parts, of two lists differ, or empty when the lists are not known well enough.
std::string tensor_difference(const Report& a, const Report& b, const Work* work, int size) {
  if (std::string shapes = shape_difference(a, b, work, size); !shapes.empty()) {
    return shapes;
  }
  if (a.counts.empty() || b.counts.empty()) {
    return {};
  }
  const auto lengths = [work, size](std::size_t i, const Report& x, const Report& y) {
    return subject(work, i, size) + ": rank " + std::to_string(x.reporter) + " has " + std::to_string(x.counts[i]) +
           " elements, rank " + std::to_string(y.reporter) + " has " + std::to_string(y.counts[i]);
  };
  for (std::size_t i = 0; i < std::min(a.counts.size(), b.counts.size()); ++i) {
    if (a.counts[i] != b.counts[i]) {
      return lengths(i, a, b);
    }
  }
  return {};
}

}  // namespace

// Leaves a report for all other ranks, once.
void Communicator::tell(const Report& report) {
  if (told_) {
    return;
  }
  told_ = true;
  const std::string text = report.encode(kReportBytes);
  if (own_page_ != nullptr) {
    std::memcpy(own_page_->report, text.data(), text.size());
    // Release: the text before its length, and both before the notice below.
    own_page_->report_bytes.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
  }
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) {
      continue;
    }
    if (domain_ != nullptr && domain_->has(r)) {
      domain_->control(r).aborted.store(1, std::memory_order_release);
      domain_->wake(r);
    } else if (Link* link = message_link(r); link != nullptr && peer(r).state == Peer::State::kThere) {
      link->abort(text);
    }
  }
  // Before anything that the caller does when it hears of the failure: others may be reading its arrays, and look at
  // the notice afterwards (Executor::read).
  full_fence();
}

// The report of a rank, where it has come.
bool Communicator::collect(int r, Report* report) const {
  if (const auto found = received_.find(r); found != received_.end()) {
    *report = found->second;
    return true;
  }
  if (r < 0 || r >= size() || !maps(r)) {
    return false;
  }
  const ControlPage& page = domain_->control(r);
  const std::size_t bytes = page.report_bytes.load(std::memory_order_acquire);
  if (bytes == 0 || bytes > kReportBytes) {
    return false;
  }
  *report = checked(Report::decode(std::string(page.report, bytes)), r);
  return true;
}

// What a member says, unless it makes no sense in this group: then that is the failure.
Report Communicator::checked(const Report& report, int member) const {
  if (report.valid(size()) && report.reporter == member) {
    return report;
  }
  Report bad;
  bad.kind = ErrorKind::kPeer;
  bad.communicator = options_.id;
  bad.reporter = rank();
  bad.culprit = member;
  bad.sequence = static_cast<std::int64_t>(executor_->completed);
  bad.text = who(member) + " has sent a malformed report; look at its own output, and start the job again";
  return bad;
}

void Communicator::reported(int world_rank, const Report& report) {
  const int member = member_of(world_rank);
  if (member < 0) {
    return;
  }
  if (report.kind == ErrorKind::kNone) {
    left_[member] = true;
    return;
  }
  received_[member] = checked(report, member);
  hear(received_[member]);
}

void Communicator::noted(int world_rank, const std::vector<std::uint64_t>& words) {
  if (const int member = member_of(world_rank); member >= 0) {
    shrinking_.noted(member, words);
  }
}

void Communicator::hear(const Report& report) {
  if (heard_ == nullptr) {
    heard_ = std::make_unique<Report>(report);
    last_.work = nullptr;
    heard_at_ = Clock::now();
  }
}

// Looks whether another rank that maps this one's memory has failed.
void Communicator::hear_reports() {
  if (heard_ != nullptr || !aborted()) {
    return;
  }
  for (int r = 0; r < size(); ++r) {
    Report report;
    if (r != rank() && collect(r, &report)) {
      hear(report);
    }
  }
}

// True when a work that has all it needs must fail all the same: ranks that gave up on this collective may have left
// their part of it before they did.
bool Communicator::stopped(const Work& work) {
  hear_reports();
  if (!work.streams.empty()) {
    engine_->hear_links();
  }
  if (error_ == nullptr && heard_ != nullptr && heard_->sequence <= static_cast<std::int64_t>(work.sequence)) {
    fail(*heard_, &work);
  }
  return error_ != nullptr && error_->sequence <= static_cast<std::int64_t>(work.sequence);
}

// Fails when another rank has. Collectives before the one that failed there can still end well, so they get a moment.
void Communicator::heed_reports(Clock::time_point now) {
  hear_reports();
  if (heard_ == nullptr || error_ != nullptr) {
    return;
  }
  const auto earlier = [&](const auto& work) { return static_cast<std::int64_t>(work->sequence) < heard_->sequence; };
  const bool wait =
      std::any_of(active_.begin(), active_.end(), earlier) || std::any_of(queued_.begin(), queued_.end(), earlier);
  if (!wait || now - heard_at_ > kGrace) {
    fail(*heard_);
  }
}

// Which tensor two ranks disagree about. Signatures do not tell, but both ranks send the lengths of theirs when they
// hear of the failure, so their reports are worth waiting for, a moment at most.
std::string Communicator::tensor_detail(int a, int b, const Work* work) {
  Report first;
  Report second;
  const auto until = Clock::now() + kReportPatience;
  // Nothing more comes from a rank that is gone.
  const auto known = [&](int r, Report* report) {
    return collect(r, report) || r < 0 || r >= size() || peer(r).state != Peer::State::kThere;
  };
  while (!(known(a, &first) && known(b, &second)) && Clock::now() < until) {
    for (const int r : {a, b}) {
      if (Link* link = r >= 0 && r < size() ? message_link(r) : nullptr; link != nullptr) {
        link->progress();
      }
    }
    engine_->hear_links();
    std::this_thread::yield();
  }
  std::string text = tensor_difference(first, second, work, size());
  text = text.empty() ? text : "; " + text;
  if (!first.names.empty() || !second.names.empty()) {
    text += "; " + list_text(first) + ", " + list_text(second);
  }
  if (first.recent != second.recent) {
    return text + "; before it rank " + std::to_string(a) + " called " + first.recent + ", rank " + std::to_string(b) +
           " called " + second.recent;
  }
  return first.recent.empty() ? text : text + "; before it both called " + first.recent;
}

}  // namespace collectives
