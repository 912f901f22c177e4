// What must hold once everything has run.
#include <algorithm>
#include <utility>

#include "verify/machine.h"
#include "verify/structure.h"

namespace collectives::verification {
namespace {

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce;
}

}  // namespace

void Machine::check_drained() const {
  for (int call = 0; call < options_.repeats; ++call) {
    for (int from = 0; from < n_; ++from) {
      for (int to = 0; to < n_; ++to) {
        const Stream& messages = stream(call, from, to);
        if (messages.sends.size() != messages.receives.size()) {
          throw Violation{"rank " + std::to_string(from) + " sends " + std::to_string(messages.sends.size()) +
                          " messages to rank " + std::to_string(to) + ", which receives " +
                          std::to_string(messages.receives.size())};
        }
      }
    }
  }
}

void Machine::check_outputs(int call) {
  const std::vector<Data>& outputs = outputs_[static_cast<std::size_t>(call)];
  const bool sums = reduces(problem_.collective);
  Data expected;  // of the first rank that has an output, its pieces merged
  bool canonical = sums;
  const ValueId tree = values_.canonical();
  for (int r = 0; r < n_; ++r) {
    Data merged;
    for (const Piece& piece : outputs[static_cast<std::size_t>(r)]) {
      const std::string where = "call " + std::to_string(call) + ": rank " + std::to_string(r) + " ends with " +
                                values_.describe(piece.value) + " in bytes [" + std::to_string(piece.begin) + ", " +
                                std::to_string(piece.end) + ") of its output";
      const bool right = sums ? values_.complete(piece.value) : piece.value == values_.leaf(problem_.root);
      if (!right) {
        throw Violation{where};
      }
      if (piece.shift != 0) {
        throw Violation{where + ", but of other elements (shifted by " + std::to_string(piece.shift) + " bytes)"};
      }
      if (sums && n_ > 1 && !values_.finished(piece.value)) {
        throw Violation{where + ", which no step has finished"};
      }
      canonical = canonical && (n_ == 1 || piece.value == tree);
      verdict_.hops = std::max(verdict_.hops, piece.hops);
      if (!merged.empty() && merged.back().value == piece.value) {
        merged.back().end = piece.end;
      } else {
        merged.push_back(piece);
      }
    }
    if (merged.empty()) {
      continue;
    }
    if (expected.empty()) {
      expected = std::move(merged);
      continue;
    }
    const auto same = [](const Piece& a, const Piece& b) { return a.end == b.end && a.value == b.value; };
    if (!std::equal(expected.begin(), expected.end(), merged.begin(), merged.end(), same)) {
      throw Violation{"call " + std::to_string(call) + ": rank " + std::to_string(r) +
                      " combines the contributions in another order than the ranks before it"};
    }
  }
  verdict_.canonical = canonical;
}

std::string Machine::stuck() const {
  std::string text;
  for (int r = 0; r < n_; ++r) {
    const Rank& rank = ranks_[static_cast<std::size_t>(r)];
    if (rank.call == options_.repeats) {
      continue;
    }
    const Schedule& schedule = schedules_[static_cast<std::size_t>(r)];
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(r) + ", call " + std::to_string(rank.call);
    if (!rank.inside) {
      text += " cannot start";
    } else if (rank.step == schedule.steps.size()) {
      text += " cannot end, as sends have met no receive";
    } else {
      text += " is held up in step " + std::to_string(rank.step) + " (iteration " + std::to_string(rank.iteration) +
              ") `" + step_text(schedule, rank.step) + "`";
    }
  }
  return text;
}

}  // namespace collectives::verification
