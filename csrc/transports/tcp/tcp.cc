// Ranks that reach each other by a network.

#include "transports/tcp/link.h"

namespace collectives {
namespace {

const RegisterTransport registration({"tcp", "TCP over IPv4 and IPv6", "", nullptr, nullptr, make_tcp_link});

}  // namespace
}  // namespace collectives
