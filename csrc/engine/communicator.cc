#include "engine/communicator.h"

#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/float_environment.h"
#include "engine/failure/stacks.h"
#include "engine/record.h"

namespace collectives {

Communicator::Communicator(std::shared_ptr<Engine> engine, std::unique_ptr<Domain> domain, CommunicatorOptions options)
    : engine_(std::move(engine)),
      domain_(std::move(domain)),
      options_(std::move(options)),
      members_(*engine_, domain_.get(), options_),
      in_flight_(*engine_, domain_.get(), members_, options_),
      calls_(domain_.get(), options_),
      preparation_(domain_.get(), options_, in_flight_.executor()),
      heap_(domain_.get(), engine_->memory().get(), members_),
      reports_(*engine_, domain_.get(), options_, members_, in_flight_, calls_),
      failure_(*engine_, domain_.get(), options_, members_, in_flight_, reports_, calls_, heap_),
      driver_(*engine_, preparation_, in_flight_, failure_),
      monitor_(options_, members_, in_flight_, reports_, failure_, driver_) {
  const std::lock_guard guard(engine_->lock());
  engine_->attach(this);
}

Communicator::~Communicator() {
  if (!engine_->forked()) {
    close();
    const std::lock_guard guard(engine_->lock());
    engine_->detach(this);
  }
}

void Communicator::throw_forked() const {
  ErrorContext context;
  context.rank = rank();
  throw CollectivesError(ErrorKind::kForked,
                         "this process was forked from one that used the communicator; only the parent can use it. "
                         "Start processes with the spawn method",
                         context);
}

void Communicator::refuse_after_close() const {
  if (closed()) {
    ErrorContext context;
    context.rank = rank();
    throw CollectivesError(ErrorKind::kClosed,
                           options_.members.empty()
                               ? "the communicator is closed; call collectives.init() for a new one"
                               : "the communicator of this group is closed; make a new group",
                           context);
  }
}

void Communicator::check_usable() {
  refuse_after_close();
  if (const Report* error = failure_.error(); error != nullptr) {
    shrinking_.refuse_left_out();
    ErrorContext context;
    context.rank = rank();
    context.peer = error->suspect == rank() ? error->other : error->suspect;
    context.sequence = error->sequence;
    members_.name_process(context);
    throw CollectivesError(error->kind,
                           "the communicator has failed before and cannot be used any more: " + error->text, context);
  }
}

void Communicator::act_on_report_before_call() {
  failure_.act_on_report();
  check_usable();
}

void Communicator::prepare(Work& work, const Call& call) {
  act_on_report_before_call();
  preparation_.prepare(work, call);
  in_flight_.number(work);
}

// The place of a work that is prepared for the call, which is not the last one again.
std::shared_ptr<Work>& Communicator::prepared(const Call& call) {
  const CallKey key = calls_.key_of(call);
  std::shared_ptr<Work>& place = calls_.spares().of(key);
  calls_.forget_last();
  if (place->key.algorithm >= 0 && usable()) {
    preparation_.prepare_again(*place, call);
    in_flight_.number(*place);
  } else {
    prepare(*place, call);
    place->key = key;
  }
  calls_.remember(call, key, place);
  return place;
}

bool Communicator::run(const Call& call, std::shared_ptr<Work>& work) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  if (options_.threads) [[unlikely]] {
    publish_caller();
  }
  const FloatEnvironment own;
  const bool again = calls_.is_last(call);
  if (again) [[likely]] {
    in_flight_.number_again(calls_.last());
  }
  std::shared_ptr<Work>& place = again ? calls_.last_place() : prepared(call);
  // From here on the call counts: the other ranks wait for it.
  try {
    return run_prepared(place, again, work);
  } catch (const CollectivesError&) {
    throw;  // of a work that has ended
  } catch (...) {
    if (place->state.load(std::memory_order_relaxed) == WorkState::kActive && in_flight_.active().empty()) {
      in_flight_.add_active(place);  // to be ended with all others
    }
    fail_by_exception();
    throw;
  }
}

// Into run(), which a compiler would not do by itself: 20 instructions of a call of 8 bytes.
[[gnu::always_inline]] inline bool Communicator::run_prepared(std::shared_ptr<Work>& place, bool again,
                                                              std::shared_ptr<Work>& work) {
  Work& ready = again ? calls_.last() : *place;
  if ((again || in_flight_.idle()) && in_flight_.may_start(ready)) [[likely]] {
    in_flight_.start(ready);
    const Progress progress = in_flight_.executor().run(ready, engine_->spins());
    if (progress == Progress::kDone && (ready.ends_at_once ? !reports_.signalled() : failure_.quiet(ready)))
        [[likely]] {
      in_flight_.complete(ready);
      in_flight_.publish_completed(in_flight_.next_sequence());  // no other is in flight
      return true;
    }
    if (driver_.after_run(ready, progress)) {
      if (ready.error != nullptr) {
        throw CollectivesError(*ready.error);
      }
      return true;
    }
    engine_->recorder().waits(ready);
    watch_soon();
    in_flight_.add_active(place);
  } else {
    if (ready.numbered) {
      record_posted(engine_->recorder(), ready, options_.id);
    }
    watch_soon();
    in_flight_.add_queued(place);
  }
  calls_.forget_last();
  work = std::move(place);
  return false;
}

std::shared_ptr<Work> Communicator::post(const Call& call, bool async) { return post(call, nullptr, async); }

std::shared_ptr<Work> Communicator::post(const Call& call, std::unique_ptr<Continuation> continuation, bool async) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  if (options_.threads) {
    publish_caller();
  }
  auto work = std::make_shared<Work>();
  if (async) {
    engine_->need_progress_thread();
  }
  const FloatEnvironment own;
  prepare(*work, call);
  try {
    if (work->numbered) {
      record_posted(engine_->recorder(), *work, options_.id);
    }
    if (continuation != nullptr) {
      work->continuation = std::move(continuation);
      in_flight_.will_continue(*work);
    }
    calls_.forget_last();
    in_flight_.add_queued(work);
  } catch (...) {
    fail_by_exception();
    throw;
  }
  drive();
  watch(*work);
  engine_->wake_waiters();
  if (async && !work->finished()) {
    engine_->wake_progress_thread();
  }
  return work;
}

std::shared_ptr<Work> Communicator::post_message(const Call& call, bool async) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  act_on_report_before_call();
  auto work = std::make_shared<Work>();
  preparation_.prepare_message(*work, call);
  if (!async && call.message.sending && call.message.peer == rank() &&
      !in_flight_.messages().awaits_own(call.message.tag)) {
    throw ArgumentError("rank " + std::to_string(rank()) + " would wait for itself: it sends to itself with tag " +
                        std::to_string(call.message.tag) +
                        ", and no receive for that is posted; post one with async_op=True first, or send with it");
  }
  if (async) {
    engine_->need_progress_thread();
  }
  try {
    record_posted(engine_->recorder(), *work, options_.id);
    in_flight_.messages().start(work);
    engine_->recorder().waits(*work);
    drive();
    // The sender of a short message never waits, so here is where it learns that another rank has failed; it fails
    // then, although the message may have gone.
    engine_->handle_link_events();
    reports_.look();
    failure_.act_on_report();
    if (failure_.failed() && work->error == nullptr) {
      work->state.store(WorkState::kQueued, std::memory_order_relaxed);  // it is in no list any more
      failure_.finish(*work, *failure_.error());
    }
  } catch (...) {
    fail_by_exception();
    throw;
  }
  watch(*work);
  engine_->wake_waiters();
  if (async && !work->finished()) {
    engine_->wake_progress_thread();
  }
  return work;
}

std::optional<Incoming> Communicator::probe(int source, int tag, double timeout_s) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  act_on_report_before_call();
  if (source != Message::kAny) {
    preparation_.check_rank(source);
  }
  CallPreparation::check_tag(tag);
  Messages& messages = in_flight_.messages();
  const Messages::Probing probing(messages);
  std::optional<Incoming> found;
  bool may_come = true;
  const auto look = [&] {
    if (failed() || closed()) {
      return true;
    }
    may_come = source == Message::kAny ? members_.any_other_is_there() : members_.is_there(source);
    while (!may_come && messages.progress()) {  // what they sent before they left
    }
    found = messages.find(source, tag);
    return found.has_value() || !may_come;
  };
  engine_->warm(*this);
  if (timeout_s > 0) {
    engine_->wait(look, timeout_s);
  } else {
    drive();  // once: wait() goes on while anything moves
    look();
    engine_->wake_waiters();
  }
  if (found) {
    return found;
  }
  act_on_report_before_call();
  if (!may_come) {
    ErrorContext context;
    context.rank = rank();
    context.peer = source == Message::kAny ? -1 : source;
    members_.name_process(context);
    throw CollectivesError(ErrorKind::kPeer,
                           members_.describe_self() + ", probe with tag " + std::to_string(tag) + ": " +
                               (source == Message::kAny ? "all other ranks have" : members_.describe(source) + " has") +
                               " left the group, so no message can come",
                           context);
  }
  return std::nullopt;
}

const Algorithm* Communicator::algorithm_of(const Work& work) const {
  const std::lock_guard guard(engine_->lock());
  return work.plan->algorithm;
}

std::uint64_t Communicator::sequence_of(const Work& work) const {
  const std::lock_guard guard(engine_->lock());
  return work.sequence;
}

bool Communicator::wait(Work& work, double timeout_s) {
  if (!work.finished()) {
    refuse_after_fork();
    const std::lock_guard guard(engine_->lock());
    engine_->wait([&] { return work.finished(); }, timeout_s);
  }
  if (!work.finished()) {
    return false;
  }
  if (work.error != nullptr) {
    throw CollectivesError(*work.error);
  }
  return true;
}

void Communicator::finish_run(std::shared_ptr<Work> work) {
  const std::lock_guard guard(engine_->lock());
  calls_.forget_last();  // it may have been where this one goes
  calls_.spares().put(std::move(work));
}

bool Communicator::withdraw(Work& work) {
  const std::lock_guard guard(engine_->lock());
  if (!work.finished() && !work.streams.empty() && work.streams[0]->peer_seen) {
    return false;
  }
  failure_.finish(work, reports_.make(ErrorKind::kClosed, rank(),
                                      members_.describe_self() + " closed the communicator before this message came"));
  return true;
}

void Communicator::add_callback(const std::shared_ptr<Work>& work, Completion::Callback callback) {
  refuse_after_fork();
  const std::lock_guard guard(engine_->lock());
  refuse_after_close();  // it may have waited for its callbacks already
  engine_->completion().add(work, callbacks_, std::move(callback));
}

std::vector<std::shared_ptr<Work>> Communicator::with_callbacks() const {
  const std::lock_guard guard(engine_->lock());
  std::vector<std::shared_ptr<Work>> works = in_flight_.pending();
  std::erase_if(works, [](const auto& work) { return work->callbacks.empty(); });
  return works;
}

void Communicator::watch(Work& work) {
  if (!work.finished()) {
    engine_->warm(*this);
  }
  monitor_.watch(work);
}

void Communicator::watch_soon() {
  engine_->warm(*this);
  monitor_.watch_soon();
}

// Where ranks are threads of one process, the explanation of a failure needs the thread of each.
void Communicator::publish_caller() {
  if (domain_ != nullptr) {
    std::atomic<std::uint32_t>& caller = domain_->control(rank()).caller;
    const auto thread = static_cast<std::uint32_t>(thread_number());
    if (caller.load(std::memory_order_relaxed) != thread) {  // others may have the line
      caller.store(thread, std::memory_order_relaxed);
    }
  }
}

void Communicator::check(Clock::time_point now) {
  if (failed() || closed()) {
    return;
  }
  monitor_.check_others(now);
  shrinking_.check_early_notes();
  monitor_.check_works(now);
}

void Communicator::peer_gone(const Peer& peer) {
  const int member = members_.member_of(peer.rank);
  if (member < 0 || failed() || closed() || peer.state != Peer::State::kDead || members_.has_left(member)) {
    return;  // check() finds works that need a rank which has left
  }
  drive();  // what it still did may be enough
  if (!failed()) {
    failure_.fail_by_loss(member, peer);
  }
}

void Communicator::receive_note(int world_rank, const std::vector<std::uint64_t>& words) {
  if (const int member = members_.member_of(world_rank); member >= 0) {
    shrinking_.receive_note(member, words);
  }
}

Report Communicator::report(ErrorKind kind, int suspect, std::string text) const {
  return reports_.make(kind, suspect, std::move(text));
}

void Communicator::interrupt(const std::string& what) {
  const std::lock_guard guard(engine_->lock());
  try {
    failure_.fail_here(ErrorKind::kPeer,
                       members_.describe_self() + " was interrupted (" + what + ") in the middle of a collective");
  } catch (const std::exception&) {
    fail_by_exception();
  }
}

void Communicator::abandon(const std::string& why) {
  if (engine_->forked()) {
    return;
  }
  const std::lock_guard guard(engine_->lock());
  if (!closed()) {
    failure_.fail_here(ErrorKind::kPeer, members_.describe_self() + " ended by an uncaught exception: " + why +
                                             "; look at its own output for the cause");
  }
}

void Communicator::give_up(ErrorKind kind, const std::string& text) {
  if (engine_->forked()) {
    return;
  }
  const std::lock_guard guard(engine_->lock());
  if (!closed()) {
    failure_.fail_here(kind, text);
  }
}

std::unique_ptr<CollectivesError> Communicator::failure() {
  const std::lock_guard guard(engine_->lock());
  engine_->watch_peers();
  check(Clock::now());
  return known_failure();
}

std::unique_ptr<CollectivesError> Communicator::known_failure() {
  try {
    act_on_report_before_call();
  } catch (const CollectivesError& error) {
    return std::make_unique<CollectivesError>(error.kind(), failed() ? failure_.error()->text : error.what(),
                                              error.context());
  }
  return nullptr;
}

void Communicator::use_heap(std::size_t bytes) {
  const std::lock_guard guard(engine_->lock());
  heap_.use(bytes);
}

std::map<std::string, std::int64_t> Communicator::bytes_by_transport() const {
  std::unique_lock guard(engine_->lock(), std::defer_lock);
  if (!engine_->forked()) {
    guard.lock();  // not in a child, see refuse_after_fork()
  }
  std::map<std::string, std::int64_t> bytes;
  if (domain_ != nullptr) {
    bytes[std::string(options_.within->name)] = in_flight_.mapped_bytes() + members_.bytes_over_mapped_links();
  }
  for (int r = 0; r < size(); ++r) {
    if (const Link* link = members_.process_link(r); link != nullptr) {
      bytes[std::string(link->transport())] += in_flight_.bytes_sent(r);
    }
  }
  return bytes;
}

bool Communicator::close(double timeout_s) {
  if (engine_->forked()) {
    return true;
  }
  leave();
  return engine_->completion().wait(*callbacks_, timeout_s);
}

void Communicator::leave() {
  Explanation* explanation = nullptr;
  {
    const std::lock_guard guard(engine_->lock());
    explanation = failure_.explanation();
  }
  if (explanation != nullptr) {
    explanation->wait();  // it says what happened, also when the process ends now
  }
  const std::lock_guard guard(engine_->lock());
  if (closed()) {
    return;
  }
  if (busy()) {
    Report report = reports_.make(ErrorKind::kClosed, rank(),
                                  members_.describe_self() + " closed the communicator with collectives in flight");
    report.sequence = -1;
    failure_.fail(report);
  }
  closed_.store(true, std::memory_order_relaxed);
  calls_.forget_last();
  if (!engine_->leave()) {
    // Tells the ranks that share no memory with this one. Where all communicators are closed the links have said it.
    members_.send_text(reports_.make(ErrorKind::kNone, -1, "").encode(kReportBytes));
  }
  members_.forget_links();
  if (domain_ != nullptr) {
    // From here on this rank touches no memory of the others, which may use it for something else.
    // Release: the counterpart of HostMemory::has_left().
    domain_->control(rank()).left.store(1 + in_flight_.next_sequence(), std::memory_order_release);
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && domain_->has(r)) {
        domain_->wake(r);
      }
    }
  }
}

}  // namespace collectives
