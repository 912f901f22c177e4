#include "transports/tcp/open_messages.h"

namespace collectives::tcp {

void OpenMessages::enter(TcpStream& s) {
  ++open_;
  sending_ += s.stream->sends.empty() ? 0 : 1;
  if (!s.mismatch) {
    s.awaits_long = s.front_receive_is_long();
    long_awaiting_ += s.awaits_long ? 1 : 0;
  }
  review(s);
}

void OpenMessages::leave(TcpStream& s) {
  --open_;
  sending_ -= s.stream->sends.empty() ? 0 : 1;
  long_awaiting_ -= s.awaits_long ? 1 : 0;
  Sending::remove(s);
  Receiving::remove(s);
}

void OpenMessages::review(TcpStream& s) {
  const Stream& stream = *s.stream;
  const auto sendable_now = [&] { return !s.begun() || stream.sends.front()->token || flow_.sendable(s) > 0; };
  if (stream.sends.empty() || !sendable_now()) {
    Sending::remove(s);
  } else if (!ready_.has(s) && (s.begun() || !held_.has(s))) {
    ready_.push_back(s);
  }
  if (s.awaits_long && stream.receives.empty()) {
    s.awaits_long = false;
    --long_awaiting_;
  }
  Receiving* list = !s.started && !stream.receives.empty() ? &quiet_ : nullptr;
  if (FlowControl::wants_credit_frame(s)) {
    list = s.begun() ? &due_ : &waiting_;
  }
  if (list == nullptr) {
    Receiving::remove(s);
  } else if (!list->has(s)) {
    list->push_back(s);
  }
}

void OpenMessages::announce_quiet() {
  while (TcpStream* s = quiet_.front()) {
    s->announce = true;
    review(*s);
  }
}

TcpStream* OpenMessages::next(std::size_t ready) const {
  if (ready > 0) {
    return ready_.front();
  }
  TcpStream* const held = held_.front();
  return held != nullptr && flow_.may_start(*held) ? held : nullptr;
}

TcpStream* OpenMessages::next_credit() const {
  if (!due_.empty()) {
    return due_.front();
  }
  TcpStream* const waiting = waiting_.front();
  return waiting != nullptr && flow_.may_start(*waiting) ? waiting : nullptr;
}

}  // namespace collectives::tcp
