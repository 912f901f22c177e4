// Which rank an error names when a deadline has passed elsewhere, and a relayed report of it arrives before that of the
// rank whose deadline it was. Rank 0 is real, on a host of its own; the test speaks for ranks 1 and 2.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "tcp_link_traffic.h"

namespace {

using namespace collectives;

constexpr int kRelay = 1;
constexpr int kOrigin = 2;

void say(int descriptor, const Report& report) {
  const auto frame = tcp_link_test::text_frame(wire::FrameType::kAbort, report.encode(kReportBytes));
  CHECK(::send(descriptor, frame.data(), frame.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(frame.size()));
}

// The report of `reporter` about the deadline of kOrigin, which suspects `suspect`.
Report deadline(int reporter, int suspect, std::vector<int> waits) {
  Report report;
  report.kind = ErrorKind::kDeadline;
  report.cause = Cause::kSilence;
  report.reporter = reporter;
  report.origin = kOrigin;
  report.suspect = suspect;
  report.sequence = 0;
  report.waits = std::move(waits);
  report.text = "all_reduce #0 has waited for rank " + std::to_string(suspect);
  return report;
}

struct Received {
  Report relayed;
  const Report* own;  // nullptr: nothing arrives from kOrigin itself
  int peer;
  const char* text;
};

// Rank 0 of three, each on a host of its own, in an all-reduce that never ends well: the test has the far ends of its
// links.
class Waiting {
 public:
  explicit Waiting(double timeout_s) {
    std::vector<Peer> peers(3);
    for (const int r : {kRelay, kOrigin}) {
      const auto [ours, theirs] = tcp_link_test::unix_pair();
      peers[r].rank = r;
      peers[r].link = make_tcp_link(ours, r);
      far[r] = theirs;
    }
    CommunicatorOptions options;
    options.topology.rank = 0;
    options.topology.size = 3;
    options.topology.host = {0, 1, 2};
    options.timeout_s = timeout_s;
    rank_ = std::make_unique<Communicator>(std::make_shared<Engine>(0, std::move(peers), -1, true, nullptr), nullptr,
                                           options);
    Call call;
    call.dtype = DType::kFloat32;
    call.input = {{reinterpret_cast<std::byte*>(values_.data()), 16}};
    call.output = call.input;
    work_ = rank_->post(call, false);
  }
  ~Waiting() {
    rank_.reset();
    ::close(far[kRelay]);
    ::close(far[kOrigin]);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // The error that the collective ends with.
  CollectivesError fail(const char* name) {
    try {
      CHECK(rank_->wait(*work_, 60), "%s: nothing happened", name);
    } catch (const CollectivesError& error) {
      return error;
    }
    CHECK(false, "%s: the collective ended well", name);
    std::abort();
  }

  int far[3] = {-1, -1, -1};

 private:
  std::vector<float> values_ = std::vector<float>(4, 1);
  std::unique_ptr<Communicator> rank_;
  std::shared_ptr<Work> work_;
};

void check(const char* name, const Received& received) {
  Waiting world(120);
  // Links are read in the order of ranks, so the relay comes first.
  say(world.far[kRelay], received.relayed);
  if (received.own != nullptr) {
    say(world.far[kOrigin], *received.own);
  }
  const CollectivesError error = world.fail(name);
  const std::string text = error.what();
  CHECK(error.kind() == ErrorKind::kDeadline, "%s: %s", name, text.c_str());
  CHECK(error.context().peer == received.peer, "%s: blames %d: %s", name, error.context().peer, text.c_str());
  CHECK(text.find(received.text) != std::string::npos, "%s: %s", name, text.c_str());
  CHECK(text.find("(reported by rank 2") != std::string::npos, "%s: %s", name, text.c_str());
}

// The deadline is that of the real rank, which waits for both others; rank 1 answers that it waits for rank 2, which is
// silent.
void check_own_deadline() {
  Waiting world(0.3);
  std::thread relay([&] {
    std::string received;
    char bytes[4096];
    while (received.find("has waited") == std::string::npos) {
      const ssize_t n = ::recv(world.far[kRelay], bytes, sizeof(bytes), 0);
      if (n <= 0) {
        return;
      }
      received.append(bytes, static_cast<std::size_t>(n));
    }
    Report answer = deadline(kRelay, kRelay, {kOrigin});
    answer.origin = 0;
    say(world.far[kRelay], answer);
  });
  const CollectivesError error = world.fail("own deadline");
  relay.join();
  const std::string text = error.what();
  CHECK(error.context().peer == kOrigin, "own deadline: blames %d: %s", error.context().peer, text.c_str());
  CHECK(text.find("rank 1 was there and waited for others") != std::string::npos, "own deadline: %s", text.c_str());
}

}  // namespace

int main() {
  // One direction of the network is dead: kOrigin misses this rank, which has sent all that it had to.
  const Report deaf = deadline(kOrigin, 0, {0});
  check("circle", {deadline(kRelay, 0, {kOrigin}), &deaf, kOrigin, "what it sends does not arrive at rank 2"});
  // The relay waits for no rank: it has not made the call.
  const Report behind = deadline(kOrigin, 0, {0, kRelay});
  check("idle relay", {deadline(kRelay, 0, {}), &behind, kRelay, "rank 1 has made no such call"});
  // Not even its report arrives from kOrigin.
  check("silent", {deadline(kRelay, kRelay, {kOrigin}), nullptr, kOrigin, "does not answer"});
  std::printf("3 deadlines that a rank first learns from another one: the right rank is the suspect\n");
  check_own_deadline();
  return 0;
}
