// Point-to-point messages over the mail fifos of a mapped domain.
//
// Unlike the fifos of collectives, which hold cells of one collective at a time, these carry any number of streams. A
// receiver empties its fifo whenever it is driven: what nobody has asked for yet goes to a stash. So that stashes stay
// small, a sender gives the first cell of a stream only, and the rest when the receiver has said that it waits for it.
// How many streams it may have begun that the receiver has not opened is limited too, by the sender itself, so that a
// full stash never holds up what both sides want: beyond the limit a stream begins when the receiver has asked for it.
#pragma once

#include <memory>
#include <string_view>

#include "memory/domain.h"
#include "transports/transport.h"

namespace collectives {

std::unique_ptr<Link> make_mapped_mail(const Domain& domain, int peer, std::string_view transport);

}  // namespace collectives
