#include "verify/outputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "verify/structure.h"

namespace collectives::verification {
namespace {

// Of how many ranks, from rank 0 on, the output of rank r combines the contributions.
int contributing(const World& world, int r) {
  switch (world.problem.collective) {
    case Collective::kScan:
      return r + 1;
    case Collective::kExscan:
      return r;
    default:
      return world.n;
  }
}

// Checks one piece of an output: whose contributions it must combine, and which of their bytes.
void check_piece(World& world, int r, const Piece& piece, const std::string& where, bool* canonical) {
  const bool sums = reduces(world.problem.collective);
  int from = world.problem.root;  // broadcast
  std::int64_t end = piece.end;
  std::int64_t shift = 0;
  if (world.problem.collective == Collective::kReduceScatter) {
    shift = world.problem.input_offset(0, r, world.n);
  } else if (is_vector(world.problem.collective)) {
    // The part in which the piece begins, which it must not leave.
    for (from = 0; from < world.n; ++from) {
      end = world.problem.output_offset(from, r, world.n) + world.problem.part_bytes(from, r, world.n);
      if (piece.begin < end) {
        break;
      }
    }
    shift = world.problem.input_offset(from, r, world.n) - world.problem.output_offset(from, r, world.n);
  }
  const int ranks = contributing(world, r);
  const bool prefix = is_prefix(world.problem.collective);
  if (piece.end > end ||
      !(sums ? world.values.is_prefix(piece.value, ranks) : piece.value == world.values.leaf(from))) {
    throw Violation{where};
  }
  if (piece.shift != shift) {
    throw Violation{where + ", but of other elements (shifted by " + std::to_string(piece.shift - shift) + " bytes)"};
  }
  // Of a prefix, only what no other rank contributes to: a step must make 0 or 1 of it for logical operations. Others
  // are partial results of the ranks behind.
  if (sums && world.n > 1 && (!prefix || ranks == 1) && !world.values.finished(piece.value)) {
    throw Violation{where + ", which no step has finished"};
  }
  *canonical =
      *canonical && sums &&
      (world.n == 1 || piece.value == (prefix ? world.values.canonical_prefix(ranks) : world.values.canonical()));
}

}  // namespace

void check_outputs(World& world, int call, const std::vector<Data>& outputs) {
  Data expected;  // of the first rank that has an output, its pieces merged
  bool canonical = true;
  for (int r = 0; r < world.n; ++r) {
    Data merged;
    for (const Piece& piece : outputs[static_cast<std::size_t>(r)]) {
      check_piece(world, r, piece,
                  "call " + std::to_string(call) + ": rank " + std::to_string(r) + " ends with " +
                      world.values.describe(piece.value) + " in bytes [" + std::to_string(piece.begin) + ", " +
                      std::to_string(piece.end) + ") of its output",
                  &canonical);
      world.verdict.hops = std::max(world.verdict.hops, piece.hops);
      if (!merged.empty() && merged.back().value == piece.value) {
        merged.back().end = piece.end;
      } else {
        merged.push_back(piece);
      }
    }
    // Each rank has its own part, or its own prefix: there is nothing to compare.
    if (merged.empty() || is_vector(world.problem.collective) || is_prefix(world.problem.collective)) {
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
  world.verdict.canonical = canonical && reduces(world.problem.collective);
}

}  // namespace collectives::verification
