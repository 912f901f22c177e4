#include "engine/symmetric_heap.h"

#include <string>

#include "core/say.h"
#include "memory/pages.h"

namespace collectives {

void SymmetricHeap::use(std::size_t bytes) {
  if (domain_ != nullptr && bytes > used_) {
    const std::size_t before = used_;
    used_ = bytes;
    if (isolated_) {
      isolate_from(before);
    }
  }
}

void SymmetricHeap::isolate() {
  isolated_ = true;
  isolate_from(0);
}

// What lies before `begin` is private already, and must not be made so once more from what the shared memory holds.
void SymmetricHeap::isolate_from(std::size_t begin) {
  begin = whole_pages(begin);
  if (domain_ != nullptr && used_ > begin && !memory_->isolate(domain_->heap(members_.rank()) + begin, used_ - begin)) {
    say("collectives: warning: " + members_.describe_self() + ": the system has not made " + std::to_string(used_) +
        " bytes of symmetric memory private; ranks that were given up may still write there\n");
  }
}

}  // namespace collectives
