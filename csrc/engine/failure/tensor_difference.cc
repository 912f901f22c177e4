#include "engine/failure/tensor_difference.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace collectives {
namespace {

constexpr auto kReportPatience = std::chrono::seconds(1);

// What entry i of Work::counts is about; `work` is what this rank was at, or nullptr.
std::string subject(const Work* work, std::size_t i, int size) {
  if (work == nullptr || !is_vector(work->plan->problem.collective)) {
    const bool named = work != nullptr && work->details != nullptr && i < work->details->names.size();
    return "tensor " + std::to_string(i) + (named ? " ('" + work->details->names[i] + "')" : "");
  }
  const Problem& problem = work->plan->problem;
  const Collective collective = problem.collective;
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (problem.own != nullptr) {
    return "what rank " + std::to_string(i) + " gives";
  }
  // Where all parts of an all_to_all have one length, the first stands for them.
  const std::size_t parts = collective == Collective::kAllToAll ? problem.counts.size() : ranks;
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
std::string first_difference(const Report& a, const Report& b, const Work* work, int size) {
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

std::string tensor_difference(FailureReports& reports, int a, int b, const Work* work) {
  const Members& members = reports.members();
  Report first;
  Report second;
  const auto until = Clock::now() + kReportPatience;
  // Nothing more comes from a rank that is gone.
  const auto known = [&](int r, Report* report) {
    return reports.find(r, report) || r < 0 || r >= members.size() || members.peer(r).state != Peer::State::kThere;
  };
  while (!(known(a, &first) && known(b, &second)) && Clock::now() < until) {
    for (const int r : {a, b}) {
      if (Link* link = r >= 0 && r < members.size() ? members.process_link(r) : nullptr; link != nullptr) {
        link->progress();
      }
    }
    reports.engine().handle_link_events();
    std::this_thread::yield();
  }
  std::string text = first_difference(first, second, work, members.size());
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
