// Runs a fuzz target without libFuzzer: every file of the corpus, then mutations of them from a fixed seed.
// Usage: <target> [-n MUTATIONS] [-s SEED] CORPUS...

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

// What runs when the program dies: written to where it can be found again.
void keep(const Bytes& input, const char* name) {
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
}

std::vector<Bytes> read_corpus(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        files.push_back(entry.path());
      }
    } else {
      files.emplace_back(path);
    }
  }
  std::sort(files.begin(), files.end());  // the same order everywhere
  std::vector<Bytes> corpus;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

Bytes mutated(Random& random, const std::vector<Bytes>& corpus) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1)); };
  Bytes input = corpus[below(corpus.size())];
  for (std::size_t changes = 1 + below(6); changes > 0; --changes) {
    const std::size_t at = below(input.size());
    switch (below(6)) {
      case 0:
        if (!input.empty()) {
          input[at] ^= static_cast<std::uint8_t>(1u << below(8));
        }
        break;
      case 1:
        if (!input.empty()) {
          input[at] = static_cast<std::uint8_t>(random());
        }
        break;
      case 2:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::uint8_t>(random()));
        break;
      case 3:
        input.resize(at);
        break;
      case 4: {  // the end of another input
        const Bytes& other = corpus[below(corpus.size())];
        const std::size_t from = below(other.size());
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default: {  // a piece of it twice
        const std::size_t bytes = std::min<std::size_t>(below(64), input.size() - at);
        const Bytes piece(input.begin() + static_cast<std::ptrdiff_t>(at),
                          input.begin() + static_cast<std::ptrdiff_t>(at + bytes));
        input.insert(input.end(), piece.begin(), piece.end());
      }
    }
    input.resize(std::min<std::size_t>(input.size(), 4096));
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  long mutations = 8000;
  std::uint64_t seed = 1;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
      mutations = std::atol(argv[++i]);
    } else if (std::strcmp(argv[i], "-s") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      paths.emplace_back(argv[i]);
    }
  }
  const std::vector<Bytes> corpus = read_corpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [-n MUTATIONS] [-s SEED] CORPUS...\n", argv[0]);
    return 2;
  }
  const char* last = std::getenv("FUZZ_KEEP");  // a file for the input that is being run
  Random random(seed);
  for (const Bytes& input : corpus) {
    if (last != nullptr) {
      keep(input, last);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  for (long i = 0; i < mutations; ++i) {
    const Bytes input = mutated(random, corpus);
    if (last != nullptr) {
      keep(input, last);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs of the corpus and %ld mutations, seed %llu: nothing found\n", corpus.size(), mutations,
              static_cast<unsigned long long>(seed));
  return 0;
}
