// What becomes of a work that is run, and of one look at what it waits for.
#pragma once

#include <cstdint>

namespace collectives {

enum class Progress : std::uint8_t { kDone, kBlocked, kMismatch };

// kDiffers: the other rank is there, and makes another call.
enum class Look : std::uint8_t { kNotYet, kThere, kDiffers };

// For a look that did not find kThere.
inline Progress stopped(Look seen) { return seen == Look::kDiffers ? Progress::kMismatch : Progress::kBlocked; }

}  // namespace collectives
