// Whether another rank makes the same call, and which one does not.
#pragma once

#include "core/signature.h"
#include "engine/work.h"

namespace collectives {

class SignatureCheck {
 public:
  // Keeps the rank and its signature where that is not the signature of the work.
  bool differs(int rank, const Signature& theirs, const Work& work) {
    if (theirs == work.signature) {
      return false;
    }
    rank_ = rank;
    signature_ = theirs;
    return true;
  }

  // Of the last difference; -1 before the first.
  int rank() const { return rank_; }
  const Signature& signature() const { return signature_; }

 private:
  int rank_ = -1;
  Signature signature_;
};

}  // namespace collectives
