// Malformed frames against real links: an engine is in the middle of a collective when its peer sends something that no
// rank sends. Each time the collective must end in an error that names the peer, although the connection stays up; and
// nothing may be left behind. Beside it, in the same process, two ranks go on with a job over TCP, and their sums must
// be right.
//
//   malformed_frames_test [frames] [threads] [seed]

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "tcp_link_traffic.h"

namespace {

using namespace collectives;
using tcp_link_test::Bytes;
using tcp_link_test::pick;
using tcp_link_test::Random;
using wire::FrameHeader;
using wire::FrameType;

std::unique_ptr<Communicator> rank_over(int descriptor, int rank, double timeout_s) {
  std::vector<Peer> peers(2);
  peers[1 - rank].rank = 1 - rank;
  peers[1 - rank].link = make_tcp_link(descriptor, 1 - rank);
  auto engine = std::make_shared<Engine>(rank, std::move(peers), -1, true, nullptr);
  CommunicatorOptions options;
  options.topology.rank = rank;
  options.topology.size = 2;
  options.topology.host = {0, 1};
  options.timeout_s = timeout_s;
  return std::make_unique<Communicator>(engine, nullptr, options);
}

Call sum_of(std::vector<float>& values) {
  Call call;
  call.dtype = DType::kFloat32;
  call.input = {
      {reinterpret_cast<std::byte*>(values.data()), static_cast<std::int64_t>(values.size() * sizeof(float))}};
  call.output = call.input;
  return call;
}

void append(Bytes& wire, const FrameHeader& header) {
  std::byte bytes[wire::kHeaderBytes];
  wire::encode(header, bytes);
  wire.insert(wire.end(), bytes, bytes + sizeof(bytes));
}

// What is wrong with a frame. The offsets are those of wire.h.
enum Fault : int {
  kMagic,
  kType,
  kFlags,
  kReserved,
  kReservedEnd,
  kNoData,
  kTooMuchData,
  kUnexpectedPayload,
  kLongReport,
  kCredit,
  kSecondFirst,
  kNoFirst,
  kStreamsTaken,
  kWindow,
  kAfterBye,
  kUnreadableReport,
  kReportOfNobody,
  kRandomHeader,
  kFlippedBytes,
  kCutHeader,
  kCutPayload,
  kFaults
};

// The bytes that the peer sends: perhaps something in order, then a frame with that fault.
Bytes malformed(Random& random, int fault, const Signature& signature) {
  const auto any = [&](std::int64_t low, std::int64_t high) { return pick(random, low, high); };
  Bytes wire;
  FrameHeader h;  // of the stream of the collective that is under way
  h.type = FrameType::kData;
  h.signature = signature;
  h.first = true;
  h.length = static_cast<std::uint32_t>(any(1, 200));
  const bool ordinary = any(0, 1) == 0 && fault != kNoFirst;
  if (ordinary) {
    append(wire, h);
    wire.resize(wire.size() + h.length);
    h.first = false;
  }
  const std::size_t begin = wire.size();
  const auto put = [&](std::size_t offset, std::int64_t value) {
    append(wire, h);
    wire[begin + offset] = static_cast<std::byte>(value);
  };
  switch (fault) {
    case kMagic:
      append(wire, h);
      wire[begin + static_cast<std::size_t>(any(0, 3))] ^= static_cast<std::byte>(any(1, 255));
      break;
    case kType:
      put(4, any(0, 1) == 0 ? 0 : any(7, 255));
      break;
    case kFlags:
      put(5, any(2, 255));
      break;
    case kReserved:
      put(static_cast<std::size_t>(any(6, 7)), any(1, 255));
      break;
    case kReservedEnd:
      put(static_cast<std::size_t>(any(52, 55)), any(1, 255));
      break;
    case kNoData:
      h.length = 0;
      append(wire, h);
      break;
    case kTooMuchData:
      h.length = static_cast<std::uint32_t>(any(wire::kMaxFrameBytes + 1, 0xffffffff));
      append(wire, h);
      break;
    case kUnexpectedPayload:
      h.type = any(0, 1) == 0 ? FrameType::kToken : static_cast<FrameType>(any(5, 6));
      append(wire, h);
      break;
    case kLongReport:
      h = {};
      h.type = FrameType::kAbort;
      h.length = static_cast<std::uint32_t>(any(wire::kMaxReportBytes + 1, 0xffffffff));
      append(wire, h);
      break;
    case kCredit:
      h.type = any(0, 1) == 0 ? FrameType::kCredit : FrameType::kData;
      h.length = h.type == FrameType::kData ? h.length : 0;
      h.credit = any(0, 1) == 0 ? static_cast<std::uint64_t>(any(5000, 1 << 30)) : random() | std::uint64_t{1} << 63;
      append(wire, h);
      break;
    case kSecondFirst:
      h.first = true;
      h.type = FrameType::kCredit;
      h.length = 0;
      append(wire, h);
      append(wire, h);
      break;
    case kNoFirst:
      h.first = false;
      append(wire, h);
      break;
    case kStreamsTaken:
      h.streams_opened = static_cast<std::uint32_t>(any(2, 0x7fffffff));
      append(wire, h);
      break;
    case kWindow: {  // streams that are not open, of more than may be sent before that
      h.sequence = static_cast<std::uint64_t>(any(1, 1000));
      h.first = true;
      h.communicator |= kMessageBit;
      h.length = static_cast<std::uint32_t>(any(wire::kEagerMessageBytes + 1, wire::kMaxFrameBytes));
      append(wire, h);
      break;
    }
    case kAfterBye:
      h.type = FrameType::kBye;
      h.first = false;
      h.length = 0;
      append(wire, h);
      h.type = static_cast<FrameType>(any(2, 6));
      h.length = 0;
      append(wire, h);
      break;
    case kUnreadableReport: {
      h = {};
      h.type = FrameType::kAbort;
      h.length = static_cast<std::uint32_t>(any(0, 300));
      append(wire, h);
      for (std::uint32_t i = 0; i < h.length; ++i) {
        wire.push_back(static_cast<std::byte>(any(0, 3) == 0 ? any('9', 255) : any(0, '0' - 1)));
      }
      break;
    }
    case kReportOfNobody: {
      Report report;
      report.kind = static_cast<ErrorKind>(any(2, 7));
      int* const ranks[] = {&report.reporter, &report.origin, &report.suspect, &report.other};
      *ranks[any(0, 3)] = static_cast<int>(any(0, 1) == 0 ? any(2, 1 << 30) : any(-(1 << 30), -2));
      report.sequence = any(-1, 3);
      report.text = "nonsense";
      const Bytes frame = tcp_link_test::text_frame(FrameType::kAbort, report.encode(8 << 10));
      wire.insert(wire.end(), frame.begin(), frame.end());
      break;
    }
    case kRandomHeader:
      for (std::size_t i = 0; i < wire::kHeaderBytes; ++i) {
        wire.push_back(static_cast<std::byte>(any(0, 255)));
      }
      break;
    case kFlippedBytes: {
      append(wire, h);
      FrameHeader decoded;
      std::string error;
      while (wire::decode(wire.data() + begin, &decoded, &error)) {
        wire[begin + static_cast<std::size_t>(any(0, wire::kHeaderBytes - 1))] = static_cast<std::byte>(any(0, 255));
      }
      break;
    }
    case kCutHeader:
      append(wire, h);
      wire.resize(begin + static_cast<std::size_t>(any(1, wire::kHeaderBytes - 1)));
      break;
    default:
      append(wire, h);
      wire.resize(wire.size() + static_cast<std::size_t>(any(0, h.length - 1)));
  }
  return wire;
}

// One engine, one collective, one malformed frame.
void trial(Random& random, int fault) {
  const auto [ours, theirs] = tcp_link_test::unix_pair();
  {
    const auto rank = rank_over(ours, 0, 120);
    std::vector<float> values(256, 1);
    const std::shared_ptr<Work> work = rank->post(sum_of(values), false);
    const Bytes wire = malformed(random, fault, work->signature);
    // In one piece, or in two.
    const bool whole = pick(random, 0, 1) == 0;
    const auto cut = whole ? wire.size() : static_cast<std::size_t>(pick(random, 0, static_cast<int>(wire.size())));
    const auto send = [&](std::size_t from, std::size_t to) {
      CHECK(::send(theirs, wire.data() + from, to - from, MSG_NOSIGNAL) == static_cast<ssize_t>(to - from));
    };
    bool failed = false;
    try {
      send(0, cut);
      if (cut < wire.size()) {
        rank->wait(*work, 0);
        send(cut, wire.size());
      }
      if (fault == kCutHeader || fault == kCutPayload) {
        ::shutdown(theirs, SHUT_WR);
      }
      CHECK(rank->wait(*work, 60), "fault %d: nothing happened", fault);
    } catch (const CollectivesError& error) {
      failed = true;
      const std::string text = error.what();
      CHECK(error.kind() == ErrorKind::kPeer, "fault %d: %s", fault, text.c_str());
      CHECK(error.context().peer == 1 && text.find("rank 1") != std::string::npos, "fault %d: %s", fault, text.c_str());
    }
    CHECK(failed, "fault %d: the collective ended well", fault);
  }
  ::close(theirs);
}

std::int64_t resident_kib() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE) / 1024;
}

std::int64_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Two ranks that go on until they are stopped; returns how many collectives they did.
std::int64_t job(const std::pair<int, int>& fds, const std::atomic<bool>& stop) {
  std::int64_t done[2] = {0, 0};
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const auto rank = rank_over(r == 0 ? fds.first : fds.second, r, 600);
      for (bool last = false; !last; ++done[r]) {
        // They stop together: the first value says so.
        std::vector<float> values(done[r] % 7 == 0 ? 50000 : 100, static_cast<float>(r + 1));
        values[0] = stop ? 1 : 0;
        const std::shared_ptr<Work> work = rank->post(sum_of(values), false);
        CHECK(rank->wait(*work, -1));
        last = values[0] > 0;
        for (std::size_t i = 1; i < values.size(); ++i) {
          CHECK(values[i] == 3, "sum %g", static_cast<double>(values[i]));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return done[0];
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers keep freed memory for a while
#else
constexpr bool kSanitized = false;
#endif

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t frames = argc > 1 ? std::atoll(argv[1]) : 8000;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 16;
  const std::uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  std::atomic<bool> stop{false};
  std::int64_t collectives = 0;
  const std::pair<int, int> fds = tcp_link_test::tcp_pair();
  std::thread beside([&] { collectives = job(fds, stop); });

  const auto run = [&](std::int64_t from, std::int64_t to) {
    std::atomic<std::int64_t> next{from};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&] {
        for (std::int64_t i = next++; i < to; i = next++) {
          Random random(seed * 1000003 + static_cast<std::uint64_t>(i));
          trial(random, static_cast<int>(i % kFaults));
        }
      });
    }
    for (std::thread& thread : all) {
      thread.join();
    }
  };
  run(0, frames / 10);
  const std::int64_t before = resident_kib();
  const std::int64_t open = descriptors();
  run(frames / 10, frames);
  const std::int64_t after = resident_kib();
  CHECK(descriptors() == open, "%ld descriptors, and %ld after the tenth part", static_cast<long>(descriptors()),
        static_cast<long>(open));
  CHECK(kSanitized || after - before < 8 << 10, "%ld KiB resident, and %ld after the tenth part",
        static_cast<long>(after), static_cast<long>(before));
  stop = true;
  beside.join();
  CHECK(collectives > 1);
  std::printf(
      "%ld malformed frames with %d kinds of fault, seed %lu: %ld errors that name the peer; resident %ld KiB after a "
      "tenth, %ld KiB at the end; %ld open descriptors at both; beside it %ld all-reduces with right sums\n",
      static_cast<long>(frames), static_cast<int>(kFaults), static_cast<unsigned long>(seed), static_cast<long>(frames),
      static_cast<long>(before), static_cast<long>(after), static_cast<long>(open), static_cast<long>(collectives));
  return 0;
}
