// The algorithm that a rank has chosen travels in the signature of the call: ranks that chose differently run nothing.
// Ranks of a job know the same and so choose the same, so here they are told different things.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "local_world.h"

namespace {

using namespace collectives;

bool fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  return false;
}

std::vector<Override> always(const char* algorithm) {
  Override override;
  override.algorithm = find_algorithm(Collective::kAllReduce, algorithm);
  override.high = INT64_MAX;
  return {override};
}

// An all_reduce by ranks of which each takes the algorithm of that name: none where both are done, else what rank 1 was
// told. asked: by number, in the call of rank 1; 0 leaves the choice open.
std::string outcome(const std::vector<int>& host, const char* first, const char* second, int asked) {
  LocalWorld world(Limits(), true, host, {always(first), always(second)});
  std::vector<float> arrays[2] = {std::vector<float>(100, 1), std::vector<float>(100, 2)};
  std::shared_ptr<Work> works[2];
  for (int r = 0; r < 2; ++r) {
    Call call;
    call.collective = Collective::kAllReduce;
    call.input = {{reinterpret_cast<std::byte*>(arrays[r].data()), 400}};
    call.output = call.input;
    call.algorithm = r == 1 ? asked : 0;
    works[r] = world.ranks[r]->post(call, false);
  }
  // Long enough to look at the reports of others, which a wait does every few milliseconds.
  for (int r = 0; !works[0]->finished() || !works[1]->finished(); r = 1 - r) {
    try {
      world.ranks[r]->wait(*works[r], 0.05);
    } catch (const CollectivesError&) {
      // Works keep their errors.
    }
  }
  if (works[1]->error != nullptr) {
    return works[1]->error->what();
  }
  return arrays[0] == std::vector<float>(100, 3) && arrays[1] == arrays[0] ? "" : "the sum is wrong";
}

bool holds(const std::string& found, const std::string& expected) {
  const bool as_expected = expected.empty() ? found.empty() : found.find(expected) != std::string::npos;
  return as_expected || fail("the outcome is \"" + found + "\" in place of \"" + expected + "\"");
}

bool passes() {
  // The number has seven bits beside that of kChosen, and one of its values is taken.
  if (algorithms().size() >= kByNccl - kChosen) {
    return fail("there are too many algorithms for their numbers in signatures");
  }
  const int ring = algorithm_id(*find_algorithm(Collective::kAllReduce, "ring"));
  const std::string chose = "algorithm: rank 0 has auto, which chose one_shot, rank 1 has auto, which chose ring;";
  const std::string named = "algorithm: rank 0 has auto, rank 1 has ring;";
  for (const std::vector<int>& host : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    if (!holds(outcome(host, "ring", "ring", 0), "") || !holds(outcome(host, "one_shot", "ring", 0), chose) ||
        !holds(outcome(host, "one_shot", "one_shot", ring), named) ||
        !holds(outcome(host, "ring", "ring", ring), named)) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  try {
    return passes() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
}
