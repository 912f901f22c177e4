// What lies in a segment lies apart: no byte has two purposes, for any number of ranks and any limits.

#include "memory/domain.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace collectives;

constexpr std::size_t kHeapBytes = 3 << 12;
constexpr std::size_t kArenaBytes = 5 << 12;

struct Piece {
  std::string name;
  std::size_t begin;
  std::size_t bytes;
};

// All that Domain says is in the segment of rank 0, by its place there.
std::vector<Piece> pieces(const Domain& domain, const std::byte* base) {
  std::vector<Piece> all;
  const auto add = [&](const std::string& name, const void* begin, std::size_t bytes) {
    all.push_back({name, static_cast<std::size_t>(static_cast<const std::byte*>(begin) - base), bytes});
  };
  const SegmentLayout& layout = domain.layout();
  const Limits& limits = domain.limits();
  add("the control page", &domain.control(0), sizeof(ControlPage));
  for (int i = 0; i < kHeaderLines; ++i) {
    add("header line " + std::to_string(i), &domain.header(0, static_cast<std::uint64_t>(i)), sizeof(HeaderLine));
  }
  for (int slot = 0; slot < limits.slots; ++slot) {
    const auto index = static_cast<std::uint64_t>(slot);
    add("slot " + std::to_string(slot), domain.bounce(0, index), static_cast<std::size_t>(limits.slot_bytes));
    for (int id = 0; id < kFlags; ++id) {
      add("flag " + std::to_string(id) + " of slot " + std::to_string(slot), &domain.flag(0, id, index),
          sizeof(FlagLine));
    }
  }
  for (int other = 0; other < domain.size(); ++other) {
    for (const Channel channel : {Channel::kCollective, Channel::kMail}) {
      const std::string which =
          (channel == Channel::kMail ? " of the mail, rank " : " of rank ") + std::to_string(other);
      add("the acknowledgement" + which, &domain.ack(other, 0, channel), sizeof(AckLine));
      for (int i = 0; i < kFifoCells; ++i) {
        const auto index = static_cast<std::uint64_t>(i);
        const std::string cell = "cell " + std::to_string(i) + which;
        add("the head of " + cell, &domain.cell(0, other, index, channel), sizeof(FifoCell));
        add("the data of " + cell, domain.cell_data(0, other, index, channel), kFifoCellBytes);
      }
    }
  }
  add("the heap", domain.heap(0), layout.heap_bytes);
  add("the arena", base + layout.arena, layout.arena_bytes);
  return all;
}

int overlaps(int size, const Limits& limits) {
  const SegmentLayout layout(size, limits, kHeapBytes, kArenaBytes);
  // Never touched, so it takes no memory.
  const std::unique_ptr<std::byte, void (*)(void*)> segment(
      static_cast<std::byte*>(std::aligned_alloc(4096, layout.total)), std::free);
  const std::vector<std::byte*> bases(static_cast<std::size_t>(size), segment.get());
  const std::vector<int> doorbells(static_cast<std::size_t>(size), -1);
  std::vector<Piece> all = pieces(Domain(0, limits, layout, bases, doorbells, nullptr), segment.get());
  std::ranges::sort(all, {}, &Piece::begin);
  int wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool last = i + 1 == all.size();
    if (all[i].begin + all[i].bytes > (last ? layout.total : all[i + 1].begin)) {
      std::fprintf(stderr, "FAILED: %d ranks, %d slots of %lld bytes: %s reaches into %s\n", size, limits.slots,
                   static_cast<long long>(limits.slot_bytes), all[i].name.c_str(),
                   last ? "what is behind the segment" : all[i + 1].name.c_str());
      ++wrong;
    }
  }
  return wrong;
}

// What is mapped anew, given back or made private begins with a page, and so does what follows it.
int splits_pages(int size, const Limits& limits, std::size_t page) {
  const SegmentLayout layout(size, limits, kHeapBytes, kArenaBytes, page);
  int wrong = 0;
  for (const std::size_t begin : {layout.bounce, layout.fifos, layout.heap, layout.arena, layout.total}) {
    if (begin % page != 0) {
      std::fprintf(stderr, "FAILED: %d ranks, %d slots of %lld bytes, pages of %zu bytes: something begins at %zu\n",
                   size, limits.slots, static_cast<long long>(limits.slot_bytes), page, begin);
      ++wrong;
    }
  }
  return wrong;
}

}  // namespace

int main() {
  int wrong = 0;
  for (const int size : {1, 2, 3, 17, 64}) {
    for (const int slots : {2, 4, 8}) {
      for (const std::int64_t slot_bytes : {64, 100, 4096, 512 << 10}) {
        Limits limits;
        limits.slots = slots;
        limits.slot_bytes = slot_bytes;
        wrong += overlaps(size, limits);
        wrong += splits_pages(size, limits, 4096);
        wrong += splits_pages(size, limits, 65536);
      }
    }
  }
  return wrong == 0 ? 0 : 1;
}
