#include "transports/tcp/flow_control.h"

namespace collectives::tcp {

bool FlowControl::wants_credit_frame(const TcpStream& s) {
  if (s.started) {
    // Without receives, which may be the end of the stream, credit is less urgent.
    return s.consumed - s.announced >= (s.stream->receives.empty() ? 2 * kCreditBytes : kCreditBytes);
  }
  const std::int64_t much = wire::eager_bytes(s.key.communicator) / 2;
  if (s.announce || s.received > much) {
    return true;
  }
  std::int64_t expected = s.consumed;
  for (const ReceiveRequest* r : s.stream->receives) {
    expected += r->remaining;
    if (expected > much) {
      return true;
    }
  }
  return false;
}

}  // namespace collectives::tcp
