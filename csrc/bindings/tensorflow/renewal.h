// Renewal of communicators, for groups that survive a mismatch, as those of the training API do. A mismatch fails the
// communicator on all ranks; together they make a new one when each begins its next step.
//
// They must not make it within the step: on some ranks more ops of that step may run after the failure, and they must
// find the failed communicator. A step is one run of a function, or of an op in eager mode, and has a number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/communicator.h"

namespace collectives::tensorflow {

// The communicator for an op of `step`. Renews it first, where ranks disagreed in an earlier step. Without a step, for
// programs that use the communicator directly, it is renewed after any mismatch. Throws why it could not be renewed.
std::shared_ptr<Communicator> renewed(std::int64_t number, std::optional<std::int64_t> step);

// Has the communicator renewed in a later step: an op of this step has raised a mismatch. Where there is no memory to
// record that, the communicator is not renewed, and all further calls raise.
void schedule_renewal(std::int64_t number, std::optional<std::int64_t> step, const Communicator& communicator) noexcept;

// Makes a new communicator and gives it the number. Writes why that failed, as a text that ends with 0, or an empty
// one.
using Renew = void (*)(std::int64_t number, char* problem, std::size_t bytes);
// Sets the function that renews.
void renew_by(Renew renew);

}  // namespace collectives::tensorflow
