#include "predict/rehearsal.h"

#include "predict/bound.h"

namespace collectives {
namespace {

// Smaller jobs are simulated whole as quickly.
constexpr int kLeastFolded = 16;

}  // namespace

Problem even_problem(Collective collective, std::int64_t bytes, int root, int size) {
  Problem problem;
  problem.collective = collective;
  problem.root = root;
  problem.count = (bytes + problem.element() - 1) / problem.element();
  if (is_vector(collective)) {
    const std::int64_t part = (problem.count + size - 1) / size;
    const bool all_to_all = collective == Collective::kAllToAll;
    problem.counts.assign(all_to_all ? 1 : static_cast<std::size_t>(size), part);
    problem.count = part * size * (all_to_all ? size : 1);
  }
  return problem;
}

Rehearsal::Rehearsal(const Algorithm& algorithm, const Problem& problem, std::int64_t bytes, const Topology& topology,
                     const Network& network, const ProcessorCosts& processor)
    : algorithm_(&algorithm),
      topology_(&topology),
      network_(&network),
      processor_(&processor),
      problem_(problem),
      bytes_(bytes) {
  if (!fold()) {
    make_all();
  }
  if (ready()) {
    least_ = least_time(schedules_, *topology_, *network_, fold_, *processor_);
    ProcessorCosts of_bytes = *processor_;
    of_bytes.send_message = of_bytes.receive_message = of_bytes.mapped_message = of_bytes.step = 0;
    least_for_bytes_ = least_time(schedules_, *topology_, *network_, fold_, of_bytes);
  }
}

Simulated Rehearsal::run(Picoseconds most) {
  Simulated result = simulate(most);
  if (!result.ends && fold_.symmetry != Symmetry::kNone) {
    make_all();
    if (ready()) {
      result = simulate(most);
    }
  }
  return result;
}

Simulated Rehearsal::simulate(Picoseconds most) const {
  return Simulation(schedules_, *topology_, *network_, fold_, *processor_).run(most);
}

// Of one dtype, so that the choice does not depend on which call of a class comes first.
void Rehearsal::use(std::int64_t bytes) {
  const MemoryKind memory = problem_.memory;
  problem_ = even_problem(problem_.collective, bytes, problem_.root, topology_->size);
  problem_.memory = memory;
}

Schedule Rehearsal::build(int rank) const {
  Topology of_rank = *topology_;
  of_rank.rank = rank;
  return algorithm_->build(problem_, of_rank, Limits());
}

// One host stands for all: with the bytes as they are, or else with as many as all ranks can share equally, in whole
// cache lines.
bool Rehearsal::fold() {
  if (topology_->size <= kLeastFolded || !has_equal_hosts(*topology_, fold_)) {
    return false;
  }
  const std::int64_t unit = std::int64_t{64} * topology_->size;
  for (const std::int64_t length : {bytes_, (bytes_ + unit - 1) / unit * unit}) {
    use(length);
    fold_.symmetry = symmetry_of([&](int rank) { return build(rank); }, fold_, schedules_);
    if (fold_.symmetry != Symmetry::kNone) {
      return true;
    }
  }
  return false;
}

void Rehearsal::make_all() {
  use(bytes_);
  fold_ = {};
  schedules_.clear();
  std::int64_t steps = 0;
  for (int rank = 0; rank < topology_->size; ++rank) {
    schedules_.push_back(build(rank));
    steps += static_cast<std::int64_t>(schedules_.back().steps.size());
    if (topology_->size > kMostSimulated && steps > kMostSteps) {
      schedules_.clear();
      return;
    }
  }
}

}  // namespace collectives
