// What an algorithm is: a pure function to a schedule, with a descriptor by which the selector chooses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/link_cost.h"
#include "core/topology.h"
#include "core/types.h"
#include "schedule/own_parts.h"
#include "schedule/schedule.h"

namespace collectives {

struct Problem {
  Collective collective = Collective::kAllReduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  MemoryKind memory = MemoryKind::kPrivate;
  // Elements: of each rank where all have the same, else of all parts together.
  std::int64_t count = 0;
  int root = 0;
  // Vector collectives: the elements of the part of each rank. all_to_all: one number where all parts have the same
  // length; else `own`, or the whole table [from * size + to].
  std::vector<std::int64_t> counts;
  // all_to_all: what the rank of Topology knows; only of its own parts can anything be asked then.
  std::shared_ptr<const OwnParts> own;

  std::int64_t element() const { return static_cast<std::int64_t>(size_of(dtype)); }
  std::int64_t bytes() const { return count * element(); }
  // What a rank gives and gets, in bytes.
  std::int64_t input_bytes(int rank, int size) const;
  std::int64_t output_bytes(int rank, int size) const;
  // Vector collectives: what travels from one rank to another (or stays, when they are the same), and where it lies
  // in the input of the one and in the output of the other.
  std::int64_t part_bytes(int from, int to, int size) const;
  std::int64_t input_offset(int from, int to, int size) const;
  std::int64_t output_offset(int from, int to, int size) const;
  // How many other ranks before `to` get something of `from`.
  std::int64_t readers_before(int from, int to, int size) const;
  // Whether a rank gets a result, in vector collectives perhaps an empty one.
  bool has_output(int rank) const {
    return collective == Collective::kReduce ? rank == root : collective != Collective::kExscan || rank > 0;
  }
  // All parts that are not empty have the same length.
  bool even() const;
  // The same problem as a rank knows it that has only its own row and column: all_to_all has `own`, or one number.
  Problem as_known_to(int rank, int size) const;

 private:
  bool has_one_length() const { return collective == Collective::kAllToAll && counts.size() == 1; }
};

// Of memory: as measured between two cores that share a cache (docs/lab/index.md).
struct CostModel {
  LinkCost mapped;                      // lines that migrate between two ranks
  double shared_bytes_per_us = 12500;   // lines that one rank writes again and again and others read
  double swapped_bytes_per_us = 18400;  // lines of bounce buffers that two ranks swap, see swapped()
  LinkCost message;                     // between ranks that share no memory
  double copy_bytes_per_us = 40000;
  // The model for these ranks. mapped, message: as the transports say.
  static CostModel of(const Topology& topology, LinkCost mapped, LinkCost message);
  // The links of an algorithm in which all ranks talk to each other: the ranks of a host share its network.
  LinkCost slowest(const Topology& topology) const;
};

// Canonical: values are combined along one binary tree over rank numbers, with float32 partials for halves, whatever
// the size, fusion or transport; in scan and exscan from rank 0 upwards, see prefix.h. Fixed: the order is fixed by the
// schedule, so runs repeat, but it depends on the size.
enum class Determinism : std::uint8_t { kCanonical, kFixed };

struct Algorithm {
  std::string_view name;
  Collective collective;
  std::string_view description;  // one sentence
  std::string_view source;       // the paper or program it comes from
  Determinism determinism;
  // Why the algorithm cannot be used here, or empty when it can.
  std::string_view (*unsupported)(const Problem&, const Topology&);
  // Predicted time in microseconds.
  double (*cost)(const Problem&, const Topology&, const CostModel&);
  Schedule (*build)(const Problem&, const Topology&, const Limits&);
};

// The registry. Algorithms register themselves from their own file.
struct RegisterAlgorithm {
  explicit RegisterAlgorithm(const Algorithm& algorithm);
};

// All algorithms, sorted by collective and name, so that positions are the same in every process of one build.
const std::vector<Algorithm>& algorithms();

// The algorithm of that name, or nullptr.
const Algorithm* find_algorithm(Collective collective, std::string_view name);

// 1 + position in algorithms(): the number that travels in signatures.
int algorithm_id(const Algorithm& algorithm);

// A number that differs, all but surely, between builds whose algorithms() differ.
std::uint32_t algorithms_digest();

// The schedule of a named algorithm for a problem; ArgumentError where there is no such algorithm or it does not apply.
// A group of one needs no algorithm: Algorithm::build is called for two ranks and more only.
Schedule build_schedule(std::string_view algorithm, const Problem& problem, const Topology& topology,
                        const Limits& limits);

}  // namespace collectives
