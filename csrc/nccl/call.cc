#include "nccl/call.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace collectives {
namespace {

// Makes the calls of NCCL for one call, by its kind.
class Issue {
 public:
  Issue(const NcclApi& api, const NcclCall& call, const NcclRank& self, const NcclOperation& operation, NcclComm comm)
      : api_(api), call_(call), rank_(self.rank), size_(self.size), operation_(operation), comm_(comm) {}

  NcclResult dense() {
    for (std::size_t t = 0; t < call_.lengths.size() && ok(); ++t) {
      const std::size_t count = values(call_.lengths[t]);
      if (count == 0) {
        continue;
      }
      switch (call_.collective) {
        case Collective::kAllReduce:
          done(api_.all_reduce(from(t, 0), to(t, 0), count, operation_.type, operation_.op, comm_, call_.stream));
          break;
        case Collective::kReduce:
          done(api_.reduce(from(t, 0), to(t, 0), count, operation_.type, operation_.op, call_.root, comm_,
                           call_.stream));
          break;
        case Collective::kBroadcast:
          done(api_.broadcast(rank_ == call_.root ? from(t, 0) : to(t, 0), to(t, 0), count, operation_.type, call_.root,
                              comm_, call_.stream));
          break;
        default:
          call_.sending ? send(t, 0, call_.lengths[t], call_.peer) : receive(t, 0, call_.lengths[t], call_.peer);
      }
    }
    return result_;
  }

  NcclResult all_gather() {
    for (std::size_t t = 0; t < tensors() && ok(); ++t) {
      if (even(t)) {
        if (part(t, 0) > 0) {
          done(api_.all_gather(from(t, 0), to(t, 0), values(part(t, 0)), operation_.type, comm_, call_.stream));
        }
        continue;
      }
      // NCCL has no vector collectives: where lengths differ, each part is a broadcast.
      std::int64_t offset = 0;
      for (int r = 0; r < size_ && ok(); offset += part(t, r++)) {
        if (part(t, r) > 0) {
          done(api_.broadcast(r == rank_ ? from(t, 0) : to(t, offset), to(t, offset), values(part(t, r)),
                              operation_.type, r, comm_, call_.stream));
        }
      }
    }
    return result_;
  }

  NcclResult reduce_scatter() {
    for (std::size_t t = 0; t < tensors() && ok(); ++t) {
      if (even(t)) {
        if (part(t, 0) > 0) {
          done(api_.reduce_scatter(from(t, 0), to(t, 0), values(part(t, 0)), operation_.type, operation_.op, comm_,
                                   call_.stream));
        }
        continue;
      }
      std::int64_t offset = 0;
      for (int r = 0; r < size_ && ok(); offset += part(t, r++)) {
        if (part(t, r) > 0) {
          done(api_.reduce(from(t, offset), r == rank_ ? to(t, 0) : nullptr, values(part(t, r)), operation_.type,
                           operation_.op, r, comm_, call_.stream));
        }
      }
    }
    return result_;
  }

  NcclResult all_to_all() {
    for (std::size_t t = 0; t < tensors(); ++t) {
      std::int64_t sent = 0;
      std::int64_t received = 0;
      for (int r = 0; r < size_ && ok(); ++r) {
        send(t, sent, part(t, rank_ * size_ + r), r);
        receive(t, received, part(t, r * size_ + rank_), r);
        sent += part(t, rank_ * size_ + r);
        received += part(t, r * size_ + rank_);
      }
    }
    return result_;
  }

  NcclResult gather() {
    for (std::size_t t = 0; t < tensors(); ++t) {
      send(t, 0, part(t, rank_), call_.root);
      std::int64_t offset = 0;
      for (int r = 0; rank_ == call_.root && r < size_ && ok(); offset += part(t, r++)) {
        receive(t, offset, part(t, r), r);
      }
    }
    return result_;
  }

  NcclResult scatter() {
    for (std::size_t t = 0; t < tensors(); ++t) {
      std::int64_t offset = 0;
      for (int r = 0; rank_ == call_.root && r < size_ && ok(); offset += part(t, r++)) {
        send(t, offset, part(t, r), r);
      }
      receive(t, 0, part(t, rank_), call_.root);
    }
    return result_;
  }

 private:
  bool ok() const { return result_ == kNcclSuccess || result_ == kNcclInProgress; }
  void done(NcclResult result) { result_ = result; }

  void send(std::size_t tensor, std::int64_t offset, std::int64_t count, int peer) {
    if (count > 0 && ok()) {
      done(api_.send(from(tensor, offset), values(count), operation_.type, peer, comm_, call_.stream));
    }
  }
  void receive(std::size_t tensor, std::int64_t offset, std::int64_t count, int peer) {
    if (count > 0 && ok()) {
      done(api_.recv(to(tensor, offset), values(count), operation_.type, peer, comm_, call_.stream));
    }
  }

  std::size_t values(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * static_cast<std::size_t>(operation_.values);
  }
  std::int64_t bytes(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(call_.dtype)); }
  const void* from(std::size_t tensor, std::int64_t offset) const {
    return tensor < call_.inputs.size() ? static_cast<const std::byte*>(call_.inputs[tensor]) + bytes(offset) : nullptr;
  }
  void* to(std::size_t tensor, std::int64_t offset) const {
    return tensor < call_.outputs.size() ? static_cast<std::byte*>(call_.outputs[tensor]) + bytes(offset) : nullptr;
  }

  // The lengths of vector collectives are ordered by part, then by tensor.
  std::size_t parts() const {
    const auto n = static_cast<std::size_t>(size_);
    return call_.collective == Collective::kAllToAll ? n * n : n;
  }
  std::size_t tensors() const { return call_.lengths.size() / parts(); }
  std::int64_t part(std::size_t tensor, int index) const {
    return call_.lengths[static_cast<std::size_t>(index) * tensors() + tensor];
  }
  bool even(std::size_t tensor) const {
    for (int r = 1; r < size_; ++r) {
      if (part(tensor, r) != part(tensor, 0)) {
        return false;
      }
    }
    return true;
  }

  const NcclApi& api_;
  const NcclCall& call_;
  int rank_;
  int size_;
  const NcclOperation& operation_;
  NcclComm comm_;
  NcclResult result_ = kNcclSuccess;
};

}  // namespace

void check_nccl_call(const NcclCall& call, const NcclRank& self) {
  const auto n = static_cast<std::size_t>(self.size);
  const std::size_t parts = !is_vector(call.collective) ? 1 : call.collective == Collective::kAllToAll ? n * n : n;
  if (call.lengths.size() % parts != 0) {
    throw ArgumentError(std::to_string(call.lengths.size()) + " lengths are no multiple of the " +
                        std::to_string(parts) + " parts");
  }
  const int limit = call.collective == Collective::kMessage ? call.peer : call.root;
  if (limit < 0 || limit >= self.size) {
    throw ArgumentError((call.collective == Collective::kMessage ? "peer " : "root ") + std::to_string(limit) +
                        " is out of range: the group has ranks 0 to " + std::to_string(self.size - 1));
  }
  const std::size_t tensors = call.lengths.size() / parts;
  const bool at_root = self.rank == call.root;
  const bool message = call.collective == Collective::kMessage;
  const bool gives =
      message ? call.sending
              : (call.collective != Collective::kScatter && call.collective != Collective::kBroadcast) || at_root;
  const bool gets = message
                        ? !call.sending
                        : (call.collective != Collective::kGather && call.collective != Collective::kReduce) || at_root;
  const auto check = [&](const char* what, std::size_t given, bool needed) {
    if (needed && given != tensors) {
      throw ArgumentError(std::to_string(given) + what + " were given for " + std::to_string(tensors) + " tensors");
    }
  };
  check(" inputs", call.inputs.size(), gives);
  check(" outputs", call.outputs.size(), gets);
  if (std::any_of(call.lengths.begin(), call.lengths.end(), [](std::int64_t length) { return length < 0; })) {
    throw ArgumentError("a length is negative");
  }
}

NcclResult issue_nccl_call(const NcclApi& api, const NcclCall& call, const NcclRank& self,
                           const NcclOperation& operation, void* scratch, NcclComm comm) {
  Issue issue(api, call, self, operation, comm);
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kMessage:
      return issue.dense();
    case Collective::kBarrier:
      return api.all_reduce(scratch, scratch, 1, kNcclUint8, kNcclMax, comm, call.stream);
    case Collective::kAllGather:
      return issue.all_gather();
    case Collective::kReduceScatter:
      return issue.reduce_scatter();
    case Collective::kAllToAll:
      return issue.all_to_all();
    case Collective::kGather:
      return issue.gather();
    case Collective::kScatter:
      return issue.scatter();
    case Collective::kScan:
    case Collective::kExscan:
      break;  // NCCL has none
  }
  return kNcclInternalError;
}

}  // namespace collectives
