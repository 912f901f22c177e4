#include "nccl/library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <mutex>
#include <optional>

#include "core/distribution.h"
#include "core/environment.h"
#include "core/error.h"

namespace collectives {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr const char* kInstall =
    "pip install '" COLLECTIVES_DISTRIBUTION "[nccl]' (or nvidia-nccl-cu12 beside a driver for CUDA 12)";

std::string dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error of dlopen";
}

// Looks a symbol up. False where it is missing, which library.why then says.
template <class Function>
bool look_up(void* handle, const char* symbol, Function& function, NcclLibrary& library) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  if (function == nullptr) {
    library.why = library.path + " has no symbol " + symbol + ", so it is no NCCL of version " +
                  nccl_version_text(kNcclLeastVersion) + " or later; " + kInstall +
                  ", or set COLLECTIVES_NCCL_LIB to the path of another libnccl.so.2";
  }
  return function != nullptr;
}

void read_version(NcclLibrary& library) {
  const NcclResult result = library.api.get_version(&library.version);
  if (result != kNcclSuccess) {
    library.why = "ncclGetVersion of " + library.path + " gives error " + std::to_string(result) + "; " + kInstall;
  } else if (library.version < kNcclLeastVersion) {
    library.why = library.path + " is NCCL " + nccl_version_text(library.version) + "; " +
                  nccl_version_text(kNcclLeastVersion) +
                  " or later is needed, whose calls can be given up when another rank dies: " + kInstall;
  }
}

// Fills `library` from a handle of dlopen.
void load_symbols(void* handle, const std::string& where, NcclLibrary& library) {
  library.where = where;
  NcclApi& api = library.api;
  void* known = dlsym(handle, "ncclGetVersion");
  Dl_info info{};
  library.path = known != nullptr && dladdr(known, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kSoname;
  const auto get = [&](const char* symbol, auto& function) { return look_up(handle, symbol, function, library); };
  // The version first: for an old library, it is a clearer reason than a symbol that is missing.
  if (!get("ncclGetVersion", api.get_version)) {
    return;
  }
  read_version(library);
  const bool all =
      library.why.empty() && get("ncclGetUniqueId", api.get_unique_id) &&
      get("ncclCommInitRankConfig", api.comm_init_rank_config) && get("ncclCommFinalize", api.comm_finalize) &&
      get("ncclCommDestroy", api.comm_destroy) && get("ncclCommAbort", api.comm_abort) &&
      get("ncclCommGetAsyncError", api.comm_get_async_error) && get("ncclGetErrorString", api.get_error_string) &&
      get("ncclCommCount", api.comm_count) && get("ncclCommCuDevice", api.comm_cu_device) &&
      get("ncclAllReduce", api.all_reduce) && get("ncclBroadcast", api.broadcast) && get("ncclReduce", api.reduce) &&
      get("ncclAllGather", api.all_gather) && get("ncclReduceScatter", api.reduce_scatter) &&
      get("ncclSend", api.send) && get("ncclRecv", api.recv) && get("ncclGroupStart", api.group_start) &&
      get("ncclGroupEnd", api.group_end) && get("ncclRedOpCreatePreMulSum", api.red_op_create_pre_mul_sum) &&
      get("ncclRedOpDestroy", api.red_op_destroy);
  if (all) {
    api.get_last_error = reinterpret_cast<const char* (*)(NcclComm)>(dlsym(handle, "ncclGetLastError"));
  }
}

NcclLibrary find(const std::vector<std::string>& candidates) {
  NcclLibrary library;
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
  if (const auto chosen = environment("COLLECTIVES_NCCL_LIB")) {
    // The user has chosen: no other library is tried where this one does not work.
    void* handle = dlopen(chosen->c_str(), kFlags);
    if (handle == nullptr) {
      library.why = "COLLECTIVES_NCCL_LIB is \"" + *chosen + "\", which cannot be loaded: " + dl_error();
    } else {
      load_symbols(handle, "COLLECTIVES_NCCL_LIB", library);
    }
    return library;
  }
  if (void* handle = dlopen(kSoname, kFlags | RTLD_NOLOAD); handle != nullptr) {
    load_symbols(handle, "loaded before by this process", library);
    return library;
  }
  std::string tried;
  for (const std::string& path : candidates) {
    struct stat file{};
    if (stat(path.c_str(), &file) != 0) {
      continue;
    }
    if (void* handle = dlopen(path.c_str(), kFlags); handle != nullptr) {
      load_symbols(handle, "Python package", library);
      return library;
    }
    tried += dl_error() + "; ";
  }
  if (void* handle = dlopen(kSoname, kFlags); handle != nullptr) {
    load_symbols(handle, "system", library);
  } else {
    library.why = "NCCL is not there: " + tried + dl_error() + "; " + kInstall;
  }
  return library;
}

}  // namespace

const NcclLibrary& nccl_library(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static const NcclLibrary* library = nullptr;  // never deleted: threads may still use it while the process ends
  const std::lock_guard guard(mutex);
  if (library == nullptr) {
    library = new NcclLibrary(find(candidates));
  }
  return *library;
}

const NcclLibrary& usable_nccl_library(const std::vector<std::string>& candidates) {
  const NcclLibrary& library = nccl_library(candidates);
  if (!library.usable()) {
    throw CollectivesError(ErrorKind::kBackend, library.why, {});
  }
  return library;
}

std::string nccl_version_text(int version) {
  if (version < 10000) {  // up to 2.8
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 100) + "." +
           std::to_string(version % 100);
  }
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

}  // namespace collectives
