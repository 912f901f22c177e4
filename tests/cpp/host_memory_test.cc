// The memory that groups are made of: first fit, zeros, and when a segment may be used again. Two ranks of one process
// that map the same segments, as two processes would.

#include "memory/host_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "memory/arena.h"

namespace {

using namespace collectives;

#define CHECK(condition) check((condition), #condition, __LINE__)

void check(bool holds, const char* condition, int line) {
  if (!holds) {
    std::fprintf(stderr, "line %d: %s\n", line, condition);
    std::exit(1);
  }
}

void first_fit(std::size_t page) {
  Arena arena(10 * page, page);
  CHECK(arena.allocate(1) == 0);
  CHECK(arena.allocate(3 * page) == page);
  CHECK(arena.allocate(2 * page + 1) == 4 * page);
  CHECK(!arena.allocate(4 * page));
  CHECK(arena.allocate(3 * page) == 7 * page);
  CHECK(!arena.allocate(1));
  arena.free(page);
  CHECK(!arena.allocate(4 * page));
  CHECK(arena.allocate(page) == page);
  CHECK(arena.allocate(2 * page) == 2 * page);
  arena.free(0);
  arena.free(page);
  CHECK(arena.allocate(2 * page) == 0);
  arena.shrink(4 * page, page);
  CHECK(arena.bytes_at(4 * page) == page);
  CHECK(arena.allocate(2 * page) == 5 * page);
  Arena none(0, page);
  CHECK(!none.allocate(1));
  CHECK(!arena.allocate(std::size_t{1} << 63));
}

// Reserving takes memory that is there, and where there is none it is an error, not a SIGBUS: behind the end of the
// file stands for a system that has no more.
void reserving() {
  const std::size_t page = page_bytes();
  const Memory& memory = find_memory("memfd");
  const int descriptor = memory.create(2 * page);
  const Mapping mapping = memory.map(descriptor, 3 * page);
  struct stat status{};
  CHECK(fstat(descriptor, &status) == 0 && status.st_blocks == 0);
  memory.reserve(mapping.data() + 100, 2 * page - 100);
  CHECK(fstat(descriptor, &status) == 0 && static_cast<std::size_t>(status.st_blocks) * 512 == 2 * page);
  bool refused = false;
  try {
    memory.reserve(mapping.data(), 3 * page);
  } catch (const std::system_error& error) {
    refused = std::string(error.what()).find("overcommit") != std::string::npos;
  }
  CHECK(refused);
  close(descriptor);
}

// Two ranks, each with its own mappings of both segments where the kind can be mapped twice.
struct Host {
  std::vector<std::shared_ptr<HostMemory>> ranks;
  std::vector<std::vector<std::byte*>> bases;  // of each rank
  std::vector<Mapping> mappings;
  Limits limits;
  SegmentLayout layout;

  explicit Host(const std::string& kind) : layout(2, limits, 0, 32 << 20) {
    const Memory& memory = find_memory(kind);
    bases.resize(2);
    for (int segment = 0; segment < 2; ++segment) {
      const int descriptor = memory.create(layout.total);
      for (int rank = 0; rank < 2; ++rank) {
        if (descriptor >= 0 || rank == 0) {
          mappings.push_back(memory.map(descriptor, layout.total));
        }
        bases[rank].push_back(mappings.back().data());
      }
      if (descriptor >= 0) {
        close(descriptor);
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(std::make_shared<HostMemory>(rank, limits, layout, memory, bases[rank], std::vector<int>(2, -1),
                                                   std::make_shared<int>(0)));
    }
  }

  // The segment of `owner`, seen by `viewer`.
  ControlPage& page(int viewer, int owner, std::size_t offset) {
    return *reinterpret_cast<ControlPage*>(bases[viewer][owner] + layout.arena + offset);
  }
};

bool none_has_ended(int /*rank*/) { return false; }

void reuse(const std::string& kind) {
  Host host(kind);
  HostMemory& mine = *host.ranks[0];
  HostMemory& theirs = *host.ranks[1];
  const SegmentLayout layout(2, host.limits, 0);
  const std::size_t bytes = layout.total;

  const auto a = mine.allocate(bytes, bytes, 5, none_has_ended);
  const auto b = theirs.allocate(bytes, bytes, 5, none_has_ended);
  CHECK(a && b);
  CHECK(theirs.is_segment(0, *a, bytes, 5) && mine.is_segment(1, *b, bytes, 5));
  CHECK(!theirs.is_segment(0, *a, bytes, 6));
  CHECK(!theirs.is_segment(0, *a + 1, bytes, 5));
  CHECK(!theirs.is_segment(0, 32 << 20, bytes, 5));
  // Both ranks write all over the segment of rank 0.
  std::memset(host.bases[1][0] + host.layout.arena + *a + layout.headers, 7, bytes - layout.headers);

  {
    GroupSegment segment(host.ranks[0], *a);
    segment.share({{1, *b, 5}});
  }
  CHECK(host.page(1, 0, *a).left.load() != 0);  // the other rank sees that it is gone
  // The other rank has not left yet, however much it has completed: it may still write there.
  host.page(1, 1, *b).completed.store(1000);
  const auto c = mine.allocate(bytes, bytes, 6, none_has_ended);
  CHECK(c && *c != *a);
  mine.free(*c);
  host.page(1, 1, *b).left.store(1);
  const auto d = mine.allocate(bytes, bytes, 7, none_has_ended);
  CHECK(d == a);
  // It is zero, for all ranks, but for the mark of the new owner.
  for (int viewer = 0; viewer < 2; ++viewer) {
    CHECK(host.page(viewer, 0, *d).left.load() == 0);
    CHECK(host.page(viewer, 0, *d).communicator.load() == 7);
    const std::byte* base = host.bases[viewer][0] + host.layout.arena + *d;
    for (std::size_t i = layout.headers; i < bytes; ++i) {
      CHECK(base[i] == std::byte{0});
    }
  }

  // A rank that uses its own segment for something else has left, and one that has died.
  {
    GroupSegment segment(host.ranks[0], *d);
    segment.share({{1, *b, 7}});  // which is marked 5
  }
  const auto e = mine.allocate(bytes, bytes, 8, none_has_ended);
  CHECK(e == d);
  host.page(1, 1, *b).left.store(0);
  host.page(1, 1, *b).communicator.store(8);
  {
    GroupSegment segment(host.ranks[0], *e);
    segment.share({{1, *b, 8}});
  }
  const auto f = mine.allocate(bytes, bytes, 9, none_has_ended);
  CHECK(f && *f != *e);
  CHECK(mine.allocate(bytes, bytes, 10, [](int rank) { return rank == 1; }) == e);

  // Broken off before the others could say where theirs is: they may write there for ever.
  {
    const GroupSegment segment(host.ranks[0], *f);
  }
  CHECK(host.page(1, 0, *f).left.load() != 0);
  const auto g = mine.allocate(bytes, bytes, 11, none_has_ended);
  CHECK(g && *g != *f);
  // Broken off by all.
  {
    GroupSegment segment(host.ranks[0], *g);
    segment.cancel();
  }
  CHECK(mine.allocate(bytes, bytes, 12, none_has_ended) == g);
  CHECK(!mine.allocate(host.layout.arena_bytes, bytes, 13, none_has_ended));
  std::printf("ok %s\n", kind.c_str());
}

}  // namespace

int main() {
  first_fit(page_bytes());
  first_fit(65536);
  reserving();
  reuse("memfd");
  reuse("host");
  return 0;
}
