#include "nccl/errors.h"

#include <utility>

namespace collectives {
namespace {

// What the user can do, by the code and the text of NCCL.
std::string advice(NcclResult result, const std::string& words) {
  if (words.find("Duplicate GPU") != std::string::npos) {
    return "two ranks of one host use one device. Give each rank a device of its own, or start the job with "
           "transport=\"auto\"; to try things out on one device, set another NCCL_HOSTID for each process";
  }
  switch (result) {
    case kNcclUnhandledCudaError:
      return "check with nvidia-smi that the driver is as new as the CUDA of this NCCL, and set NCCL_DEBUG=INFO to see "
             "which call failed";
    case kNcclSystemError:
      return "set NCCL_DEBUG=INFO to see which system call failed; often NCCL_SOCKET_IFNAME has to name the network "
             "interface, or /dev/shm of a container is too small";
    case kNcclRemoteError:
      return "another rank has ended or cannot be reached; look at its own output for the cause, and start the job "
             "again";
    case kNcclInvalidArgument:
    case kNcclInvalidUsage:
      return "set NCCL_DEBUG=WARN to see what NCCL objects to";
    default:
      return "set NCCL_DEBUG=INFO, and start the job again";
  }
}

}  // namespace

CollectivesError nccl_error(const NcclApi& api, NcclComm comm, NcclResult result, const std::string& doing,
                            ErrorContext context) {
  const char* name = api.get_error_string(result);
  const char* last = api.get_last_error != nullptr ? api.get_last_error(comm) : nullptr;
  const std::string words = last != nullptr ? last : "";
  std::string text = doing + ": NCCL error " + std::to_string(result) + ", " + (name != nullptr ? name : "unknown");
  if (!words.empty()) {
    text += " (" + words + ")";
  }
  text += "; " + advice(result, words);
  return {result == kNcclRemoteError ? ErrorKind::kPeer : ErrorKind::kBackend, text, std::move(context)};
}

}  // namespace collectives
