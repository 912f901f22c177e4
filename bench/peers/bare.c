// Collectives of which nothing is there but the copies, the sums and the flags: see bare.py.
//
// No arguments are checked, no rank can disagree, fail or be late, and no call is told from another. Every function
// takes (state, x, bytes of x), works in place on floats, and returns 0. Slots are guarded within one kind of
// collective only: between a broadcast and an all-reduce all ranks have to meet.

#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>

#include "loops.h"

enum {
  kPayload = kLine - sizeof(uint64_t),  // bytes that travel with a flag
  kSlots = 4,                           // of a bounce buffer
  kSlot = 512 << 10,                    // bytes
  kMostRanks = 16,
  kFillByString = 1 << 10,  // bytes from which on a string instruction is faster
  kDrainByString = 8 << 10,
  kStages = 8,  // of a broadcast
  kLeastStage = 16 << 10,
  kMostStage = 128 << 10,
};

enum { kCopied, kReduced, kFlags };  // what a rank says of a chunk

typedef struct {
  char* memory;  // of so many bytes
  size_t bytes;
  char* flags;                // kFlags * kSlots lines of every rank
  char* bounces[kMostRanks];  // rank r fills bounces[r], where buffers are not swapped
  uint64_t chunk;             // the next one; all ranks count alike
  uint64_t call;              // the number of broadcasts before
  int rank;
  int size;
  int crowded;
} State;

// Bytes of shared memory for so many ranks.
size_t shared_bytes(int size) { return (size_t)(size + 1) * kHuge; }

// The state of a rank over the shared memory `file`, of shared_bytes(size) bytes; null with errno set.
State* open_state(int file, int rank, int size) {
  char* base = map_shared(file, shared_bytes(size));
  if (base == NULL) return NULL;
  State* s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  cpu_set_t cores;
  s->crowded = sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < size;
  s->memory = base;
  s->bytes = shared_bytes(size);
  s->rank = rank;
  s->size = size;
  s->flags = base;
  for (int r = 0; r < size; ++r) s->bounces[r] = base + (size_t)(r + 1) * kHuge;
  return s;
}

void close_state(State* s) {
  munmap(s->memory, s->bytes);
  free(s);
}

static inline _Atomic uint64_t* flag_line(State* s, int rank, int flag, uint64_t chunk) {
  const size_t line = ((size_t)rank * kFlags + (size_t)flag) * kSlots + chunk % kSlots;
  return (_Atomic uint64_t*)(s->flags + line * kFlagLine);
}

static inline void raise_flag(State* s, int flag, uint64_t chunk) {
  atomic_store_explicit(flag_line(s, s->rank, flag, chunk), chunk + 1, memory_order_release);
}

static inline void await_flag(State* s, int rank, int flag, uint64_t chunk) {
  _Atomic uint64_t* line = flag_line(s, rank, flag, chunk);
  for (int looks = 1; atomic_load_explicit(line, memory_order_acquire) < chunk + 1; ++looks) {
    // Where ranks share a core, whoever waits is in the way of another at once.
    if (s->crowded || looks % 1024 == 0) {
      sched_yield();
#if defined(__x86_64__)
    } else {
      __builtin_ia32_pause();
#endif
    }
  }
}

static inline void await_others(State* s, int flag, uint64_t chunk) {
  for (int r = 0; r < s->size; ++r) {
    if (r != s->rank) await_flag(s, r, flag, chunk);
  }
}

static inline char* slot(State* s, int rank, uint64_t chunk) { return s->bounces[rank] + chunk % kSlots * kSlot; }

static inline void copy_by_string(char* restrict to, const char* restrict from, size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  copy_by_loop(to, from, bytes);
#endif
}

// Into a bounce buffer: whole lines are written without being fetched from whoever had them last.
static inline void fill(char* restrict to, const char* restrict from, size_t bytes) {
  if (bytes >= kFillByString) {
    copy_by_string(to, from, bytes);
  } else {
    copy_by_loop(to, from, bytes);
  }
}

// Out of a bounce buffer.
static inline void drain(char* restrict to, const char* restrict from, size_t bytes) {
  if (bytes >= kDrainByString) {
    copy_by_string(to, from, bytes);
  } else {
    copy_by_loop(to, from, bytes);
  }
}

// What becomes of the places that sums are read from.
enum {
  kLeave,
  kBack,  // the sum is written there, too
  kTake,  // a byte of each line is written back, which makes it this core's own
};

// The sum of what all ranks give, in the order of ranks, into x. `size` is a constant for 2 and 4 ranks.
static inline __attribute__((always_inline)) void sum_of(char* x, char* const* places, size_t bytes, int size,
                                                         int then) {
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) {
    Line sum = *(const Line*)(places[0] + i);
    for (int r = 1; r < size; ++r) sum += *(const Line*)(places[r] + i);
    *(Line*)(x + i) = sum;
    for (int r = 0; then == kBack && r < size; ++r) *(Line*)(places[r] + i) = sum;
    for (int r = 0; then == kTake && r < size; ++r) {
      volatile char* byte = places[r] + i;
      if (byte != x + i) *byte = *byte;
    }
  }
  for (; i < bytes; i += 4) {
    float sum = *(const float*)(places[0] + i);
    for (int r = 1; r < size; ++r) sum += *(const float*)(places[r] + i);
    *(float*)(x + i) = sum;
    for (int r = 0; then == kBack && r < size; ++r) *(float*)(places[r] + i) = sum;
  }
}

// others: where the other ranks' are.
static void sum(State* s, char* x, char* const* others, size_t bytes, int then) {
  char* places[kMostRanks];
  for (int r = 0; r < s->size; ++r) places[r] = r == s->rank ? x : others[r];
  if (s->size == 2) {
    sum_of(x, places, bytes, 2, then);
  } else if (s->size == 4) {
    sum_of(x, places, bytes, 4, then);
  } else {
    sum_of(x, places, bytes, s->size, then);
  }
}

// All-reduce: everyone reads everyone. x has to fit into a slot. Two ranks swap bounce buffers each time the slots have
// gone round, so that what a rank fills is what it has read and taken.
int one_shot(State* s, char* x, size_t bytes) {
  const uint64_t chunk = s->chunk++;
  const int swaps = s->size == 2 && bytes > kPayload;
  const int turn = swaps ? (int)(chunk / kSlots % 2) : 0;
  char* places[kMostRanks];
  for (int r = 0; r < s->size; ++r) {
    // A slot is filled again four chunks later, when its readers have been seen in the third.
    places[r] = bytes <= kPayload ? (char*)(flag_line(s, r, kCopied, chunk) + 1) : slot(s, r ^ turn, chunk);
  }
  if (swaps) {
    copy_by_loop(places[s->rank], x, bytes);
  } else {
    fill(places[s->rank], x, bytes);
  }
  raise_flag(s, kCopied, chunk);
  await_others(s, kCopied, chunk);
  if (swaps) {
    sum(s, x, places, bytes, kTake);
  } else {
    sum(s, x, places, bytes, kLeave);
  }
  return 0;
}

// Of what a chunk has, the part of a rank, in whole lines but for the last.
static inline size_t part_begin(State* s, size_t bytes, int rank) {
  const size_t lines = (bytes + kLine - 1) / kLine;
  return smaller(bytes, lines * (size_t)rank / (size_t)s->size * kLine);
}

// All-reduce: everyone reduces one part, in place in the bounce buffers of the others; a pipeline of three stages, as
// the library's.
int two_shot(State* s, char* x, size_t bytes, size_t most) {
  const size_t chunks = (bytes + most - 1) / most;
  const uint64_t first = s->chunk;
  s->chunk += chunks;
  for (size_t round = 0; round < chunks + 2; ++round) {
    if (round < chunks) {
      const uint64_t chunk = first + round;
      char* from = x + round * most;
      const size_t all = smaller(most, bytes - round * most);
      const size_t begin = part_begin(s, all, s->rank), end = part_begin(s, all, s->rank + 1);
      char* mine = slot(s, s->rank, chunk);
      fill(mine, from, begin);
      fill(mine + end, from + end, all - end);
      raise_flag(s, kCopied, chunk);
    }
    if (round >= 1 && round < chunks + 1) {
      const uint64_t chunk = first + round - 1;
      const size_t all = smaller(most, bytes - (round - 1) * most);
      const size_t begin = part_begin(s, all, s->rank), end = part_begin(s, all, s->rank + 1);
      char* places[kMostRanks];
      for (int r = 0; r < s->size; ++r) places[r] = slot(s, r, chunk) + begin;
      await_others(s, kCopied, chunk);
      sum(s, x + (round - 1) * most + begin, places, end - begin, kBack);
      raise_flag(s, kReduced, chunk);
    }
    if (round >= 2) {
      const uint64_t chunk = first + round - 2;
      char* to = x + (round - 2) * most;
      const size_t all = smaller(most, bytes - (round - 2) * most);
      const size_t begin = part_begin(s, all, s->rank), end = part_begin(s, all, s->rank + 1);
      const char* mine = slot(s, s->rank, chunk);
      await_others(s, kReduced, chunk);
      drain(to, mine, begin);
      drain(to + end, mine + end, all - end);
    }
  }
  return 0;
}

// Broadcast from rank 0, of up to half a bounce buffer, stage by stage: everyone copies what the root publishes. The
// root returns when all have come, so that what it publishes in the next call but one is not in anybody's way.
int broadcast(State* s, char* x, size_t bytes) {
  const uint64_t first = s->chunk;
  size_t stage = (bytes / kStages + kLine - 1) / kLine * kLine;
  stage = stage < kLeastStage ? kLeastStage : smaller(stage, kMostStage);
  const size_t stages = (bytes + stage - 1) / stage;
  s->chunk += stages;
  char* bounce = s->bounces[0] + (s->call++ % 2) * (kSlots * kSlot / 2);
  if (bytes <= kPayload) bounce = (char*)(flag_line(s, 0, kCopied, first) + 1);
  if (s->rank != 0) raise_flag(s, kReduced, first);
  for (size_t i = 0; i < stages; ++i) {
    const size_t at = i * stage, length = smaller(stage, bytes - at);
    if (s->rank == 0) {
      fill(bounce + at, x + at, length);
      raise_flag(s, kCopied, first + i);
    } else {
      await_flag(s, 0, kCopied, first + i);
      drain(x + at, bounce + at, length);
    }
  }
  if (s->rank == 0) await_others(s, kReduced, first);
  return 0;
}
