// What must hold once everything has run.
#include <algorithm>
#include <utility>

#include "verify/machine.h"
#include "verify/structure.h"

namespace collectives::verification {

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

// What the bytes of one piece of an output must be: of whom, and of which of their bytes.
void Machine::check_piece(int r, const Piece& piece, const std::string& where, bool* canonical) {
  const bool sums = reduces(problem_.collective);
  int from = problem_.root;  // broadcast
  std::int64_t end = piece.end;
  std::int64_t shift = 0;
  if (problem_.collective == Collective::kReduceScatter) {
    shift = problem_.input_offset(0, r, n_);
  } else if (has_parts(problem_.collective)) {
    // The part in which the piece begins, which it must not leave.
    for (from = 0; from < n_; ++from) {
      end = problem_.output_offset(from, r, n_) + problem_.part_bytes(from, r, n_);
      if (piece.begin < end) {
        break;
      }
    }
    shift = problem_.input_offset(from, r, n_) - problem_.output_offset(from, r, n_);
  }
  if (piece.end > end || !(sums ? values_.complete(piece.value) : piece.value == values_.leaf(from))) {
    throw Violation{where};
  }
  if (piece.shift != shift) {
    throw Violation{where + ", but of other elements (shifted by " + std::to_string(piece.shift - shift) + " bytes)"};
  }
  if (sums && n_ > 1 && !values_.finished(piece.value)) {
    throw Violation{where + ", which no step has finished"};
  }
  *canonical = *canonical && sums && (n_ == 1 || piece.value == values_.canonical());
}

void Machine::check_outputs(int call) {
  const std::vector<Data>& outputs = outputs_[static_cast<std::size_t>(call)];
  Data expected;  // of the first rank that has an output, its pieces merged
  bool canonical = true;
  for (int r = 0; r < n_; ++r) {
    Data merged;
    for (const Piece& piece : outputs[static_cast<std::size_t>(r)]) {
      check_piece(r, piece,
                  "call " + std::to_string(call) + ": rank " + std::to_string(r) + " ends with " +
                      values_.describe(piece.value) + " in bytes [" + std::to_string(piece.begin) + ", " +
                      std::to_string(piece.end) + ") of its output",
                  &canonical);
      verdict_.hops = std::max(verdict_.hops, piece.hops);
      if (!merged.empty() && merged.back().value == piece.value) {
        merged.back().end = piece.end;
      } else {
        merged.push_back(piece);
      }
    }
    // Each rank has its own part: there is nothing to compare.
    if (merged.empty() || has_parts(problem_.collective)) {
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
  verdict_.canonical = canonical && reduces(problem_.collective);
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
    } else if (rank.step == rank.end) {
      text += " cannot end, as sends have met no receive";
    } else {
      text += " is held up in step " + std::to_string(rank.step) + " (iteration " + std::to_string(rank.iteration) +
              ") `" + step_text(schedule, rank.step) + "`";
    }
  }
  return text;
}

}  // namespace collectives::verification
