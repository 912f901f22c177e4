// Callbacks of works: which thread calls them and when, what they may do, and what closing waits for.

#include <pthread.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "local_world.h"

namespace {

using namespace collectives;
using Ticket = Completion::Ticket;

void check(bool good, const std::string& what) {
  if (!good) {
    throw std::runtime_error(what);
  }
}

// Two ranks, and the arrays of the sums that are in flight.
struct Pair : LocalWorld {
  Pair() : LocalWorld(2, Limits()) {}

  // An asynchronous sum of rank + 1.
  std::shared_ptr<Work> post(int rank) {
    return ranks[rank]->post(call_of(arrays.emplace_back(4, static_cast<float>(rank + 1))), true);
  }

  // The same, blocking, on an array of its own. Returns the sum.
  float run(int rank) const {
    std::vector<float> array(4, static_cast<float>(rank + 1));
    std::shared_ptr<Work> work;
    if (!ranks[rank]->run(call_of(array), work)) {
      ranks[rank]->wait(*work, -1);
      ranks[rank]->finish_run(std::move(work));
    }
    return array[0];
  }

  static Call call_of(std::vector<float>& array) {
    Call call;
    call.collective = Collective::kAllReduce;
    call.input = {
        {reinterpret_cast<std::byte*>(array.data()), static_cast<std::int64_t>(array.size() * sizeof(float))}};
    call.output = call.input;
    call.name = "sum";
    return call;
  }

  std::deque<std::vector<float>> arrays;
};

std::string name_of_this_thread() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

// Of several thousand, each is called once, those of a work in the order in which they were added, by one thread.
void many_are_called_in_order() {
  constexpr int kWorks = 1000;
  constexpr int kEach = 10;
  Pair pair;
  // By work. No lock: the completion thread of rank 0 is the only one that appends.
  std::vector<std::vector<int>> calls(kWorks);
  std::vector<std::string> threads;
  std::vector<std::shared_ptr<Work>> works;
  for (int w = 0; w < kWorks; ++w) {
    works.push_back(pair.post(0));
    for (int i = 0; i < kEach; ++i) {
      pair.ranks[0]->add_callback(works.back(), [&calls, &threads, w, i](Work& work, Ticket&) {
        calls[w].push_back(work.finished() ? i : -1);
        threads.push_back(name_of_this_thread());
      });
    }
    works.push_back(pair.post(1));
  }
  for (std::size_t i = 0; i < works.size(); ++i) {
    pair.ranks[i % 2]->wait(*works[i], -1);
  }
  pair.ranks[0]->close();  // returns when all have been called
  const std::vector<int> expected = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (int w = 0; w < kWorks; ++w) {
    check(calls[w] == expected, "the callbacks of work " + std::to_string(w) + " were not called in order, once each");
  }
  check(threads == std::vector<std::string>(kWorks * kEach, "collectives-cb"), "other threads called back");
}

void a_work_that_is_finished_calls_back_by_the_same_thread() {
  Pair pair;
  const std::shared_ptr<Work> works[2] = {pair.post(0), pair.post(1)};
  for (int r = 0; r < 2; ++r) {
    pair.ranks[r]->wait(*works[r], -1);
  }
  std::promise<std::string> called;
  pair.ranks[0]->add_callback(works[0], [&](Work& work, Ticket&) {
    called.set_value(work.error == nullptr ? name_of_this_thread() : "failed");
  });
  const std::string caller = called.get_future().get();
  check(caller == "collectives-cb", "called back by " + caller);
  pair.ranks[0]->close();  // the callback uses `called` until it has returned
}

// It may use the engine; the next one comes although this one throws.
void one_that_throws_and_one_that_posts() {
  Pair pair;
  const std::shared_ptr<Work> first = pair.post(0);
  std::shared_ptr<Work> second;
  std::promise<void> called;
  pair.ranks[0]->add_callback(first, [](Work&, Ticket&) { throw std::runtime_error("as this test wants it"); });
  pair.ranks[0]->add_callback(first, [&](Work&, Ticket&) {
    second = pair.post(0);
    pair.ranks[0]->add_callback(second, [&](Work&, Ticket&) { called.set_value(); });
  });
  pair.ranks[1]->wait(*pair.post(1), -1);
  check(pair.run(1) == 3, "the sum of the callback is wrong");
  called.get_future().get();
  pair.ranks[0]->close();
}

// The ticket of a callback of the work, which moves it away at once.
std::future<Ticket> ticket_of(Communicator& communicator, const std::shared_ptr<Work>& work) {
  const auto ticket = std::make_shared<std::promise<Ticket>>();
  communicator.add_callback(work, [ticket](Work&, Ticket& given) { ticket->set_value(std::move(given)); });
  return ticket->get_future();
}

// What may block goes on on another thread. Closing waits for it all the same.
void one_that_waits_for_another_collective() {
  Pair pair;
  std::promise<float> sum;
  std::promise<void> go;
  std::future<Ticket> ticket = ticket_of(*pair.ranks[0], pair.post(0));
  pair.post(1);
  std::thread thread([&, own = ticket.get()] {
    const Completion::Running running(own);
    sum.set_value(pair.run(0));
    go.get_future().get();
  });
  pair.run(1);
  check(sum.get_future().get() == 3, "the sum of the callback is wrong");
  check(!pair.ranks[0]->close(0), "close() did not say that the callback has not returned");
  go.set_value();
  check(pair.ranks[0]->close(), "close() returned early");
  thread.join();
}

void a_failed_work_calls_back_with_its_error() {
  Pair pair;
  std::atomic<ErrorKind> kind{ErrorKind::kNone};
  const std::shared_ptr<Work> work = pair.post(0);
  pair.ranks[0]->add_callback(work, [&](Work& failed, Ticket&) {
    kind.store(failed.error == nullptr ? ErrorKind::kNone : failed.error->kind(), std::memory_order_relaxed);
  });
  pair.ranks[0]->close();
  check(kind.load(std::memory_order_relaxed) == ErrorKind::kClosed, "the callback did not see that the work failed");
  try {
    pair.ranks[0]->add_callback(work, [](Work&, Ticket&) {});
    check(false, "a callback was added after close()");
  } catch (const CollectivesError& error) {
    check(error.kind() == ErrorKind::kClosed, error.what());
  }
}

void closing_waits_for_a_callback_that_runs() {
  Pair pair;
  std::promise<void> begun;
  std::promise<void> go;
  bool returned = false;
  pair.ranks[0]->add_callback(pair.post(0), [&](Work&, Ticket&) {
    begun.set_value();
    go.get_future().get();
    returned = true;
  });
  pair.post(1);
  begun.get_future().get();
  check(!pair.ranks[0]->close(0), "close() did not say that a callback runs");
  go.set_value();
  check(pair.ranks[0]->close(), "close() returned early");
  check(returned, "close() did not wait for the callback");
}

void callbacks_may_close() {
  Pair pair;
  // On the completion thread, which then runs what was still to come.
  bool called_before_close_returned = false;
  bool second = false;
  const std::shared_ptr<Work> work = pair.post(0);
  pair.ranks[0]->add_callback(work, [&](Work&, Ticket&) {
    pair.ranks[0]->close();
    called_before_close_returned = second;
  });
  pair.ranks[0]->add_callback(work, [&](Work&, Ticket&) { second = true; });
  // Two of another communicator at the same time, on threads of their own.
  const std::shared_ptr<Work> other = pair.post(1);
  std::future<Ticket> tickets[2] = {ticket_of(*pair.ranks[1], other), ticket_of(*pair.ranks[1], other)};
  std::vector<std::thread> threads;
  std::barrier both(2);
  for (std::future<Ticket>& ticket : tickets) {
    threads.emplace_back([&, own = ticket.get()] {
      const Completion::Running running(own);
      both.arrive_and_wait();
      pair.ranks[1]->close();
    });
  }
  pair.ranks[0]->close();
  pair.ranks[1]->close();
  check(called_before_close_returned, "a callback was left when close() returned");
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// With its engine, whose completion thread runs the callback.
void a_callback_may_destroy_its_communicator() {
  Pair pair;
  std::unique_ptr<Communicator> last = std::move(pair.ranks[0]);
  Call barrier;
  barrier.collective = Collective::kBarrier;
  const auto gone = std::make_shared<std::promise<void>>();
  last->add_callback(last->post(barrier, true), [&last, gone](Work&, Ticket&) {
    last = nullptr;
    gone->set_value();
  });
  pair.ranks[1]->wait(*pair.ranks[1]->post(barrier, true), -1);
  gone->get_future().get();
}

}  // namespace

int main() {
  try {
    many_are_called_in_order();
    a_work_that_is_finished_calls_back_by_the_same_thread();
    one_that_throws_and_one_that_posts();
    one_that_waits_for_another_collective();
    a_failed_work_calls_back_with_its_error();
    closing_waits_for_a_callback_that_runs();
    callbacks_may_close();
    a_callback_may_destroy_its_communicator();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
}
