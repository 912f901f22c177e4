// The messages that are open on a TCP link, in lists by what may be done for them.
//
// Of collectives few streams are open at a time, and every call of progress() looks at each. Of messages there may be
// very many; so each is in the lists that say what may be done for it, and is reviewed only when something has come
// for it, or has been sent.
#pragma once

#include <cstddef>

#include "core/intrusive_list.h"
#include "transports/tcp/flow_control.h"
#include "transports/tcp/stream.h"

namespace collectives::tcp {

class OpenMessages {
 public:
  explicit OpenMessages(const FlowControl& flow) : flow_(flow) {}

  // A message has been opened, and what the peer had sent of it is delivered.
  void enter(TcpStream& s);
  void leave(TcpStream& s);
  // Puts the message in the lists where it belongs, after something has come for it or was sent.
  void review(TcpStream& s);
  // Lets the peer know of all receives of which it does not know.
  void announce_quiet();
  // The front request of the message has been sent.
  void end_send(TcpStream& s) {
    s.stream->end_send();
    sending_ -= s.stream->sends.empty() ? 1 : 0;
  }

  bool any() const { return open_ > 0; }
  std::size_t sending() const { return sending_; }
  bool any_awaits_long() const { return long_awaiting_ > 0; }

  // How many have something that can be sent.
  std::size_t ready() const { return ready_.size(); }
  // The next message to be sent, of those `ready` that are left of this turn, or else of those held back; nullptr:
  // none.
  TcpStream* next(std::size_t ready) const;
  // Messages begin in the order in which they were opened, so behind one that is held back others are, too.
  bool must_hold(TcpStream& s) const { return !flow_.may_start(s) || (!s.begun() && !held_.empty() && !held_.has(s)); }
  void hold(TcpStream& s) { held_.push_back(s); }
  // Behind the others that are ready.
  void put_behind(TcpStream& s) { ready_.push_back(s); }

  // A message that owes the peer a frame of credit, and may send one; nullptr: none.
  TcpStream* next_credit() const;
  // Whether there may be anything to send.
  bool may_send() const {
    return !ready_.empty() || !due_.empty() || (!held_.empty() && flow_.may_start(*held_.front())) ||
           (!waiting_.empty() && flow_.may_start(*waiting_.front()));
  }

 private:
  using Sending = IntrusiveList<TcpStream, TcpSends>;
  using Receiving = IntrusiveList<TcpStream, TcpReceives>;

  const FlowControl& flow_;
  std::size_t open_ = 0;
  std::size_t sending_ = 0;        // of these, with something to send
  std::size_t long_awaiting_ = 0;  // of these, long ones to be received
  Sending ready_;                  // may have something that can be sent
  Sending held_;                   // may not begin before the peer has opened others
  Receiving quiet_;                // the peer need not know of them yet
  Receiving waiting_;              // it should, once it has opened others if these may not begin before
  Receiving due_;                  // it is owed credit
};

}  // namespace collectives::tcp
