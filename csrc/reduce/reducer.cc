#include "reduce/reducer.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/environment.h"
#include "core/error.h"

namespace collectives {
namespace {

// Inside a function, so that it exists when the static initialisers of other files register.
std::vector<Reducer>& registry() {
  static std::vector<Reducer> reducers;
  return reducers;
}

Reducer choose() {
  const std::string wanted = environment("COLLECTIVES_ISA").value_or("");
  std::string supported;
  bool known = false;
  for (const Reducer& reducer : registry()) {
    if (!reducer.supported()) {
      known = known || reducer.isa == wanted;
      continue;
    }
    if (wanted.empty() || reducer.isa == wanted) return reducer;
    if (!supported.empty()) supported += ", ";
    supported += reducer.isa;
  }
  const std::string problem = known ? "is not supported by this machine" : "is unknown";
  throw ArgumentError("COLLECTIVES_ISA=\"" + wanted + "\" " + problem + ": accepted are " + supported);
}

}  // namespace

RegisterReducer::RegisterReducer(const Reducer& reducer) {
  std::vector<Reducer>& all = registry();
  const auto worse = [&](const Reducer& other) { return other.preference < reducer.preference; };
  all.insert(std::find_if(all.begin(), all.end(), worse), reducer);
}

const std::vector<Reducer>& reducers() { return registry(); }

bool has_kernel(Op op, DType dtype) {
  // Asked in every call, so the answers are kept.
  static const auto answers = [] {
    std::array<std::array<bool, kDTypes>, kOps> table{};
    for (int o = 0; o < kOps; ++o) {
      for (int d = 0; d < kDTypes; ++d) {
        table[o][d] = registry().front().kernel(static_cast<DType>(d), static_cast<Op>(o), true) != nullptr;
      }
    }
    return table;
  }();
  return answers[static_cast<std::size_t>(op)][static_cast<std::size_t>(dtype)];
}

const Reducer& best_reducer() {
  static const Reducer best = choose();  // when it throws, the next call tries again
  return best;
}

}  // namespace collectives
