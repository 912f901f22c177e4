// The primitives of which the limit of a collective between two ranks is made: see memcpy.py and ../limit.py.
//
// Every primitive takes (state, x, bytes of x, parts) and returns 0. What is called several times between two meetings
// of the ranks works on another part of the shared memory each time, so that no call finds what the one before has
// moved. The functions named before_... bring cache lines where the primitive should find them; they are not timed.
//
// Plain loops, which the compiler makes into vector instructions.

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "loops.h"

enum {
  kRoundTrips = 16,       // of a call of flag()
  kMeetings = 16,         // of a call of meet()
  kMeetingLines = 1024,   // for a batch of calls
  kPiece = 128 << 10,     // bytes through a bounce buffer at once, so that all of them stay in a level-2 cache
  kReceived = 512 << 10,  // bytes that a broadcast copies at once
  kBounce = 512 << 10,    // bytes, for a batch of small calls
  kBounces = 3,           // of a rank: the first is its own to fill, the others come from the peer
  kWindow = 2 << 20,      // bytes of TCP under way: the more the kernel gets at once, the faster
  kReceive = 1 << 20,     // bytes taken from the socket at once
};

typedef struct {
  char* memory;  // of so many bytes
  size_t bytes;
  char* flags[2];              // rank r writes flags[r], the first line for flag(), the others for meet()
  char* bounces[2][kBounces];  // rank r works on bounces[r]
  char* buffers[2];            // as symmetric memory: rank r owns buffers[r]
  uint64_t flag;
  long part;  // calls since the scene was set
  int rank;
  int socket;
} State;

// Waits a little. Whoever has waited long is in the way of the other rank.
static inline void relax(int* looks) {
  if (++*looks % 1024 == 0) sched_yield();
}

// Bytes of shared memory for buffers of `capacity` bytes, a multiple of the size of a huge page.
size_t shared_bytes(size_t capacity) { return 2 * capacity + 3 * kHuge; }

// The state of a rank over the shared memory `file`, which has shared_bytes(capacity) bytes; null with errno set.
State* open_state(int file, int socket, int rank, size_t capacity) {
  char* base = map_shared(file, shared_bytes(capacity));
  if (base == NULL) return NULL;
  State* s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->memory = base;
  s->bytes = shared_bytes(capacity);
  s->rank = rank;
  s->socket = socket;
  for (int r = 0; r < 2; ++r) {
    s->flags[r] = base + r * (kHuge / 2);
    for (int i = 0; i < kBounces; ++i) s->bounces[r][i] = base + kHuge + (r * kBounces + i) * kBounce;
    s->buffers[r] = base + 3 * kHuge + r * capacity;
  }
  return s;
}

void close_state(State* s) {
  munmap(s->memory, s->bytes);
  free(s);
}

// What of half of x goes through a bounce buffer at once.
static inline size_t piece_of(size_t bytes) { return smaller(bytes / 8 * 4, kPiece); }

static inline size_t whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Where this call works, when every call needs so many bytes.
static inline size_t place(State* s, size_t bytes, long parts) {
  return (size_t)(s->part++ % parts) * whole_lines(bytes);
}

// Makes the lines that all calls need dirty in the cache of this core.
static void dirty(State* s, char* data, size_t bytes, long parts) {
  bytes += (size_t)(parts - 1) * whole_lines(bytes);
  for (size_t i = 0; i < bytes; i += 4096) {
    memset(data + i, 0, smaller(4096, bytes - i));  // in small pieces, since a large memset may go around the caches
  }
  s->part = 0;
}

// a += b
static inline void add(char* restrict a, const char* restrict b, size_t bytes) {
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) *(Line*)(a + i) += *(const Line*)(b + i);
  for (; i < bytes; i += 4) *(float*)(a + i) += *(const float*)(b + i);
}

enum { kMostLines = 8 };

// Both become their sum. `lines`, a constant, are read before the first is written.
static inline __attribute__((always_inline)) void add_to_both(char* restrict a, char* restrict b, size_t bytes,
                                                              size_t lines) {
  size_t i = 0;
  for (; i + lines * kLine <= bytes; i += lines * kLine) {
    Line sums[kMostLines];
    for (size_t k = 0; k < lines; ++k) sums[k] = *(const Line*)(a + i + k * kLine) + *(const Line*)(b + i + k * kLine);
    for (size_t k = 0; k < lines; ++k) *(Line*)(a + i + k * kLine) = *(Line*)(b + i + k * kLine) = sums[k];
  }
  for (; i < bytes; i += 4) *(float*)(a + i) = *(float*)(b + i) = *(const float*)(a + i) + *(const float*)(b + i);
}

int empty(State* s, char* x, size_t bytes, long parts) {
  (void)s, (void)x, (void)bytes, (void)parts;
  return 0;
}

static inline _Atomic uint64_t* flag_line(State* s, int rank, size_t line) {
  return (_Atomic uint64_t*)(s->flags[rank] + line * kFlagLine);
}

static inline void raise_flag(State* s, size_t line) {
  atomic_store_explicit(flag_line(s, s->rank, line), s->flag, memory_order_release);
}

static inline void await_flag(State* s, size_t line) {
  _Atomic uint64_t* theirs = flag_line(s, 1 - s->rank, line);
  for (int looks = 0; atomic_load_explicit(theirs, memory_order_acquire) < s->flag;) relax(&looks);
}

// kRoundTrips times a flag to the other rank and one back.
int flag(State* s, char* x, size_t bytes, long parts) {
  (void)x, (void)bytes, (void)parts;
  for (int i = 0; i < kRoundTrips; ++i) {
    ++s->flag;
    if (s->rank == 0) raise_flag(s, 0);
    await_flag(s, 0);
    if (s->rank == 1) raise_flag(s, 0);
  }
  return 0;
}

int before_meet(State* s, char* x, size_t bytes, long parts) {
  (void)x, (void)bytes, (void)parts;
  for (size_t line = 1; line <= kMeetingLines; ++line) {
    _Atomic uint64_t* mine = flag_line(s, s->rank, line);
    atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed), memory_order_relaxed);
  }
  s->part = 0;
  return 0;
}

// kMeetings times both raise a flag and wait for the other's. The lines are new, so each is fetched only once.
int meet(State* s, char* x, size_t bytes, long parts) {
  (void)x, (void)bytes;
  const size_t first = (size_t)(s->part++ % parts) * kMeetings % kMeetingLines;
  for (size_t i = 0; i < kMeetings; ++i) {
    ++s->flag;
    raise_flag(s, 1 + first + i);
    await_flag(s, 1 + first + i);
  }
  return 0;
}

static int set_scene(State* s, char* x, size_t bytes, size_t in_bounces, long parts) {
  dirty(s, x, bytes, 1);
  for (int i = 0; i < kBounces; ++i) dirty(s, s->bounces[i == 0 ? s->rank : 1 - s->rank][i], in_bounces, parts);
  return 0;
}

int before_boxes(State* s, char* x, size_t bytes, long parts) { return set_scene(s, x, bytes, bytes, parts); }

int before_pieces(State* s, char* x, size_t bytes, long parts) {
  return set_scene(s, x, bytes, piece_of(bytes), parts);
}

// What a rank has to do when each reduces one half, without the waiting: a piece of the peer's half into a bounce
// buffer, the sum of a piece of the own half and a bounce buffer into both, a bounce buffer into a piece of the peer's
// half.
int reduce_half(State* s, char* x, size_t bytes, long parts) {
  const size_t piece = piece_of(bytes);
  const size_t at = place(s, piece, parts);
  char* theirs = x + bytes - 2 * piece;
  char* own = x + bytes - piece;
  copy_by_loop(s->bounces[s->rank][0] + at, theirs, piece);
  add_to_both(s->bounces[s->rank][1] + at, own, piece, 4);
  copy_by_loop(theirs, s->bounces[s->rank][2] + at, piece);
  return 0;
}

// The same when both reduce everything: x into a bounce buffer, and the sum of x and a bounce buffer into x.
int reduce_all(State* s, char* x, size_t bytes, long parts) {
  const size_t at = place(s, bytes, parts);
  copy_by_loop(s->bounces[s->rank][0] + at, x, bytes);
  add(x, s->bounces[s->rank][1] + at, bytes);
  return 0;
}

// A bounce buffer into a piece of x: what crosses over when the other core has just written it.
int copy_back(State* s, char* x, size_t bytes, long parts) {
  const size_t piece = piece_of(bytes);
  copy_by_loop(x + bytes - piece, s->bounces[s->rank][2] + place(s, piece, parts), piece);
  return 0;
}

// All of x, in place.
int update(State* s, char* x, size_t bytes, long parts) {
  (void)s, (void)parts;
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) *(Line*)(x + i) += 1;
  for (; i < bytes; i += 4) *(float*)(x + i) += 1;
  return 0;
}

int before_buffer(State* s, char* x, size_t bytes, long parts) {
  (void)x;
  dirty(s, s->buffers[s->rank], bytes, parts);
  return 0;
}

// The own half of both buffers becomes their sum.
int push(State* s, char* x, size_t bytes, long parts) {
  (void)x;
  const size_t half = bytes / 8 * 4;
  const size_t from = place(s, bytes, parts) + (s->rank == 0 ? 0 : half);
  const size_t own = s->rank == 0 ? half : bytes - half;
  char* mine = s->buffers[s->rank] + from;
  char* theirs = s->buffers[1 - s->rank] + from;
  // Each is the fastest there by a few percent.
  if (bytes <= 1 << 20) {
    add_to_both(mine, theirs, own, 4);
  } else {
    add_to_both(mine, theirs, own, kMostLines);
  }
  return 0;
}

int before_receive(State* s, char* x, size_t bytes, long parts) {
  const size_t received = smaller(bytes, kReceived);
  dirty(s, x + bytes - received, received, 1);
  if (s->rank == 0) dirty(s, s->buffers[0], received, parts);
  return 0;
}

// What rank 0 has written, as far as it is in its level-2 cache, into x of rank 1. The system's memcpy is a few percent
// faster here than a loop.
int receive(State* s, char* x, size_t bytes, long parts) {
  if (s->rank == 1) {
    const size_t received = smaller(bytes, kReceived);
    memcpy(x + bytes - received, s->buffers[0] + place(s, received, parts), received);
  }
  return 0;
}

// Moves `out` bytes of x to the other rank, and `in` bytes from there to x.
static int stream(State* s, char* x, size_t out, size_t in) {
  size_t sent = 0, got = 0;
  for (int looks = 0; sent < out || got < in; relax(&looks)) {
    // In an exchange what came tells how far the other rank is.
    const size_t end = in > 0 ? smaller(out, got + kWindow) : out;
    if (sent < end) {
      const ssize_t n = send(s->socket, x + sent, end - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) {
        sent += (size_t)n;
        looks = 0;
      } else if (errno != EAGAIN && errno != EINTR) {
        return errno;
      }
    }
    // What has not left yet must not be overwritten.
    const size_t room = out > 0 ? smaller(in, sent) - got : in - got;
    if (room > 0) {
      const ssize_t n = recv(s->socket, x + got, smaller(room, kReceive), MSG_DONTWAIT);
      if (n > 0) {
        got += (size_t)n;
        looks = 0;
      } else if (n == 0) {
        return ECONNRESET;
      } else if (errno != EAGAIN && errno != EINTR) {
        return errno;
      }
    }
  }
  return 0;
}

// TCP: all of x to the other rank, while as much comes from there, into x. An all-reduce in place moves no less.
int exchange(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  return stream(s, x, bytes, bytes);
}

// TCP: x from rank 0 to rank 1 and back.
int ping_pong(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  const int error = s->rank == 0 ? stream(s, x, bytes, 0) : stream(s, x, 0, bytes);
  if (error != 0) return error;
  return s->rank == 0 ? stream(s, x, 0, bytes) : stream(s, x, bytes, 0);
}

// TCP: x of rank 0 to rank 1.
int send_one_way(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  return s->rank == 0 ? stream(s, x, bytes, 0) : stream(s, x, 0, bytes);
}
