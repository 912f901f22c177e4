// What the verifier asks of a prefix: of each rank the contributions of the ranks up to its own, each once, and no
// other. Schedules that are right for one collective are no others' schedules.

#include <cstdio>
#include <string>
#include <vector>

#include "core/topology.h"
#include "schedule/algorithm.h"
#include "verify/verifier.h"

namespace {

using namespace collectives;

constexpr int kRanks = 4;

int g_failures = 0;

// The schedules of `built`, taken for those of `asked`, end with the verdict `text`; none: they are right.
void check(Collective built, Collective asked, const std::string& algorithm, const std::string& text) {
  Problem problem;
  problem.collective = built;
  problem.count = 100;
  Topology topology = one_host(0, kRanks);
  std::vector<Schedule> schedules;
  for (topology.rank = 0; topology.rank < kRanks; ++topology.rank) {
    schedules.push_back(build_schedule(algorithm, problem, topology, Limits()));
  }
  problem.collective = asked;
  const Verdict verdict = verify(schedules, problem, topology, VerifyOptions());
  const bool good = text.empty() ? verdict.ok && verdict.canonical : verdict.problem.find(text) != std::string::npos;
  if (!good) {
    std::fprintf(stderr, "FAILED: %s of %s as %s: \"%s\" instead of \"%s\"\n", algorithm.c_str(),
                 std::string(name(built)).c_str(), std::string(name(asked)).c_str(), verdict.problem.c_str(),
                 text.c_str());
    ++g_failures;
  }
}

}  // namespace

int main() {
  for (const char* algorithm : {"one_shot", "pipeline"}) {
    check(Collective::kScan, Collective::kScan, algorithm, "");
    check(Collective::kExscan, Collective::kExscan, algorithm, "");
    check(Collective::kScan, Collective::kExscan, algorithm, "writes the output of a rank that gets no result");
    check(Collective::kExscan, Collective::kScan, algorithm,
          "reads the output of rank 0 [0, 400), where nothing has been written");
    check(Collective::kScan, Collective::kAllReduce, algorithm, "rank 0 ends with the value of rank 0 (finished)");
  }
  check(Collective::kAllReduce, Collective::kScan, "one_shot",
        "rank 0 ends with the sum of ranks 0, 1, 2, 3 (finished)");
  check(Collective::kReduce, Collective::kScan, "one_shot", "reads the output of rank 1 [0, 400), where nothing");
  return g_failures == 0 ? 0 : 1;
}
