// The engine of one rank: links, watched peers, and the waiting. Whoever waits drives it.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/intrusive_list.h"
#include "core/lock.h"
#include "engine/completion.h"
#include "engine/failure/report.h"
#include "engine/groups/board.h"
#include "engine/work.h"
#include "memory/host_memory.h"
#include "recorder/recorder.h"
#include "transports/transport.h"

namespace collectives {

class Communicator;

// How another rank is reached and watched. Descriptors belong to the engine, -1 where there is none.
struct Peer {
  int rank = -1;  // in the world
  // The lowest rank of its process, -1 when the process has no other. That one has the two descriptors below for all of
  // them: their process dies once.
  int process = -1;
  std::string host;
  int pid = -1;
  int control_fd = -1;  // a socket that nothing is sent over: its end is the end of the peer
  int pid_fd = -1;
  std::unique_ptr<Link> link;  // messages between processes
  enum class State : std::uint8_t { kThere, kLeft, kDead };
  State state = State::kThere;
  bool proven = false;      // that it has left or died; else it only cannot be reached any more
  std::string why;          // it is gone
  std::string stack_place;  // where its process shows its Python stack: see stacks.h
};

class Engine {
 public:
  // peers[r] is rank r of the world; the own entry is empty. doorbell: readable when another rank wakes this one, or
  // -1. memory: nullptr where this rank shares none. ranks_per_core: see Topology.
  Engine(int rank, std::vector<Peer> peers, int doorbell, int ranks_per_core, std::shared_ptr<HostMemory> memory);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  Lock& lock() { return lock_; }
  std::vector<Peer>& peers() { return peers_; }
  const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  Recorder& recorder() { return recorder_; }
  Completion& completion() { return completion_; }
  // Which rank's failure has been explained last: as in ControlPage, where there is none.
  std::atomic<std::uint64_t>& explained() { return explained_; }
  // Looks at a flag this often before it does anything else. Small when ranks outnumber cores.
  int spins() const { return spins_; }

  // Says good-bye to the peers when all communicators are closed; false when one is open.
  bool leave();

  // Numbers of communicators. The members of a new one all propose a number and take the highest; two threads that make
  // groups at the same time can come to the same one, so each member must claim it. A number that was claimed once is
  // never good again. Up to the end of the claim, or until the communicator is attached, reports about it are kept.
  std::uint32_t propose_number();
  bool claim_number(std::uint32_t number);
  void end_claim(std::uint32_t number);
  // A number that no other rank ever comes to, for a communicator that shrink() makes without asking the others.
  std::uint32_t own_number();
  static bool is_own_number(std::uint32_t number);
  // Another one, for a group whose first member this rank is, and which its members make alone. They claim it, too.
  std::uint32_t group_number();
  // What ranks show each other to make such groups.
  Board& board() { return board_; }

  void attach(Communicator* communicator);
  void detach(Communicator* communicator);

  // From now on the communicator has something in flight.
  void warm(Communicator& communicator);

  // Drives the communicators until `finished` says so or the time is up; false when it is up. The lock must be held; it
  // is released and taken again on the way.
  bool wait(const std::function<bool()>& finished, double timeout_s);

  // Acts on what links have reported besides data, as far as they have brought it.
  void handle_link_events();
  void progress_links();
  // Looks for peers that died or left, and handles what links have brought.
  void watch_peers();

  // All that wakes this rank where it sleeps.
  std::vector<pollfd> wakers() const;

  // Works have ended that other threads may sleep for.
  void note_finished() { ++finished_; }
  void wake_waiters();

  // Makes sure that there is a thread for works that go on while no caller waits. To be called before there is one:
  // throws std::system_error where there can be none.
  void need_progress_thread();
  // Has that thread go on with the works in flight.
  void wake_progress_thread();

  // Whether this process is a child of the one that made the engine: it must not touch what it shares with its parent.
  // What it makes itself is its own.
  bool forked() const { return forked_; }

 private:
  static void after_fork_in_child();

  bool drive();
  bool drive_all();
  void check_all();
  void lose(Peer& peer, Peer::State state, bool proven, const std::string& why);
  void on_report(int rank, const Report& report);
  void on_note(int rank, const std::string& text);
  void sleep(int milliseconds);
  void clear_doorbell(std::uint64_t before);
  void change_sleepers(int change);
  void progress_loop();
  bool busy() const;
  bool stopping();

  int rank_;
  bool forked_ = false;
  std::vector<Peer> peers_;
  int doorbell_;
  int ranks_per_core_;
  int spins_;
  std::shared_ptr<HostMemory> memory_;
  Recorder recorder_;
  std::atomic<std::uint64_t> explained_{0};
  Lock lock_;
  std::vector<Communicator*> communicators_;
  // Those that have something in flight, or had a moment ago. There may be very many others, to which at most messages
  // come that no call has asked for.
  IntrusiveList<Communicator> warm_;
  std::uint32_t next_number_ = 1;                                                  // the world has 0
  std::uint32_t least_number_ = 1;                                                 // that has not been claimed
  std::uint32_t own_numbers_ = 0;                                                  // given out
  std::uint32_t group_numbers_ = 0;                                                // the same
  std::map<std::uint32_t, std::map<int, std::vector<std::uint64_t>>> kept_notes_;  // by communicator and sender
  std::map<std::uint32_t, std::vector<std::pair<int, Report>>> claims_;            // the reports, with their senders
  Board board_{*this};
  int sleepers_ = 0;
  std::uint64_t finished_ = 0;
  std::uint64_t announced_ = 0;  // of finished_, to the threads that sleep
  int owed_ = 0;                 // sleeping threads that have yet to wake by the last announcement
  std::atomic<int> waiters_{0};  // a hint, so relaxed
  Completion completion_;
  std::thread thread_;
  std::mutex thread_mutex_;
  std::condition_variable thread_wake_;
  bool thread_stop_ = false;
  bool thread_work_ = false;
};

}  // namespace collectives
