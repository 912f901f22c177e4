// Groups that outlive a disagreement, as those of the training API do: a mismatch fails the communicator for all ranks,
// and each makes a new one, with all others, when it begins its next step.
//
// Not sooner: ops of the step that failed may come afterwards, on some ranks and not on others, and must find what has
// failed. A step is one run of a function or of an op in eager mode, and has a number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/communicator.h"

namespace collectives::tensorflow {

// The communicator that an op of a step uses, a new one where ranks disagreed in a step before; without a step, for a
// program that uses the communicator beside these ops, where they disagreed at all. Throws what kept it from being
// made.
std::shared_ptr<Communicator> renewed(std::int64_t number, std::optional<std::int64_t> step);

// An op of this step has told the program that ranks disagree in a call of this communicator. Where that cannot be kept
// in mind, for want of memory, the communicator is not renewed, and all further calls raise.
void note_mismatch(std::int64_t number, std::optional<std::int64_t> step, const Communicator& communicator) noexcept;

// Makes a new communicator and gives it the number. Writes what is wrong, if anything, as a text that ends by 0.
using Renew = void (*)(std::int64_t number, char* problem, std::size_t bytes);
void renew_by(Renew renew);

}  // namespace collectives::tensorflow
