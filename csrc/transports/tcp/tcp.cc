// Ranks that reach each other by a network.

#include "transports/tcp/link.h"

namespace collectives {
namespace {

const RegisterTransport registration({
    .name = "tcp",
    .description = "TCP over IPv4 and IPv6",
    .reach = Reach::kNetwork,
    .cost = {6.0, 4000},
    .memory = "",
    .over_domain = nullptr,
    .mail_over_domain = nullptr,
    .connect = make_tcp_link,
});

}  // namespace
}  // namespace collectives
