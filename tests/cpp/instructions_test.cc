// One thread that steps two ranks in turn through the same all-reduce again and again. What it executes does not depend
// on timing, so bench/instructions.py counts instructions with it. Without arguments: checks the results of every case.
// Usage: instructions_test [case] [repetitions]

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "local_world.h"

namespace {

using namespace collectives;

struct Case {
  const char* name;
  std::vector<std::int64_t> elements;  // of each tensor
  std::vector<int> host = {0, 0};      // of each rank; over a link where they differ
};

std::vector<Case> cases() {
  std::vector<std::int64_t> fused;
  for (int t = 0; t < 100; ++t) {
    fused.push_back(1 + t * 37 % 500);  // as mixed as gradients: 1 to 500 elements
  }
  return {{"8B", {2}}, {"64KiB", {16 << 10}}, {"fused100", fused}, {"8Btcp", {2}, {0, 1}}};
}

bool run(const Case& c, int repetitions) {
  // Crowded, whatever the machine: both ranks have the core of this thread, so one look at a flag is enough everywhere
  // (unless the thread moves between two calls, which costs a hundred looks once).
  LocalWorld world(Limits(), true, c.host);
  std::vector<std::vector<std::vector<float>>> tensors(2);
  std::vector<Call> calls(2);
  for (int r = 0; r < 2; ++r) {
    for (const std::int64_t n : c.elements) {
      tensors[r].emplace_back(n, static_cast<float>(r + 1));
    }
    calls[r].dtype = DType::kFloat32;
    calls[r].op = Op::kMax;  // the same result however often it is done
    for (std::vector<float>& tensor : tensors[r]) {
      calls[r].input.push_back(
          {reinterpret_cast<std::byte*>(tensor.data()), static_cast<std::int64_t>(tensor.size() * sizeof(float))});
    }
    calls[r].output = calls[r].input;
  }
  for (int i = 0; i < repetitions; ++i) {
    run_both(world, calls);
  }
  for (const auto& of_rank : tensors) {
    for (const std::vector<float>& tensor : of_rank) {
      for (const float value : tensor) {
        if (repetitions > 0 && value != 2) {
          std::fprintf(stderr, "FAILED: %s: %g instead of 2\n", c.name, static_cast<double>(value));
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 100;
  bool good = true;
  bool found = argc <= 1;
  for (const Case& c : cases()) {
    if (argc <= 1 || std::strcmp(argv[1], c.name) == 0) {
      found = true;
      good = run(c, repetitions) && good;
    }
  }
  if (!found) {
    std::fprintf(stderr, "there is no case %s\n", argv[1]);
  }
  return good && found ? 0 : 1;
}
