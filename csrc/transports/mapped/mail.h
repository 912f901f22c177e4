// Point-to-point messages over the mail fifos of a mapped domain.
//
// Unlike the fifos of collectives, which hold cells of one collective at a time, these carry any number of streams. A
// receiver empties its fifo in every call of progress(): what no stream has asked for yet goes to a stash. To keep
// stashes small, a sender sends only the first cell of a stream, and the rest when the receiver has announced that it
// waits for it. The sender also limits how many streams it begins that the receiver has not opened, so that a full
// stash never holds up what both sides want: beyond the limit a stream begins when the receiver has asked for it.
#pragma once

#include <memory>
#include <string_view>

#include "memory/domain.h"
#include "transports/transport.h"

namespace collectives {

std::unique_ptr<Link> make_mapped_mail(const Domain& domain, int peer, std::string_view transport);

}  // namespace collectives
