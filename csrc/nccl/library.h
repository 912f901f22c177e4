// Finding NCCL at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nccl/abi.h"

namespace collectives {

struct NcclLibrary {
  NcclApi api{};
  int version = 0;    // as NCCL writes it, 0 where none was found
  std::string path;   // of the file that was loaded, where one was
  std::string where;  // how it was found
  std::string why;    // why it cannot be used, and what to do; empty where it can
  bool usable() const { return why.empty(); }
};

// Looks for NCCL when it is first called, and keeps the answer. In this order: the file that COLLECTIVES_NCCL_LIB
// names, and then nothing else; the copy that this process has loaded already, since two in one process are known to
// disturb each other; `candidates`, paths of files; libnccl.so.2, as the system finds it. The library is never
// unloaded.
const NcclLibrary& nccl_library(const std::vector<std::string>& candidates);

// Throws BackendError with the reason where it cannot be used.
const NcclLibrary& usable_nccl_library(const std::vector<std::string>& candidates);

// "2.28.9".
std::string nccl_version_text(int version);

}  // namespace collectives
