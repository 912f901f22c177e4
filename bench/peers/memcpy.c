// The primitives of which the limit of a collective between two ranks is made: see memcpy.py and ../limit.py.
//
// Every primitive takes (state, x, bytes of x, parts) and returns 0. What is called several times between two meetings of
// the ranks works on another part of the shared memory each time, so that no call finds what the one before has moved.
// The functions named before_... bring cache lines where the primitive should find them; they are not timed.
//
// Plain loops, which the compiler makes into vector instructions.

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>

enum {
  kLine = 64,
  kRoundTrips = 16,       // of a call of flag()
  kPiece = 256 << 10,     // bytes: what stays in a level-2 cache next to the rest
  kWindow = 256 << 10,    // bytes of TCP under way, beyond which they leave the caches
  kReceive = 128 << 10,   // bytes taken from the socket at once
  kHuge = 2 << 20,
};

typedef struct {
  _Atomic uint64_t* flags[2];  // rank r writes flags[r]
  char* boxes[2];              // of kPiece bytes; rank r works on boxes[r]
  char* buffers[2];            // as symmetric memory: rank r owns buffers[r]
  size_t capacity;             // of a buffer
  char* scratch;               // of kReceive bytes
  uint64_t flag;
  long part;
  int rank;
  int socket;
} State;

// A whole cache line, however wide the registers of the machine are.
typedef float Line __attribute__((vector_size(kLine), aligned(4), may_alias));

// Bytes of shared memory for buffers of `capacity` bytes, a multiple of the size of a huge page.
size_t shared_bytes(size_t capacity) { return 2 * capacity + 2 * kHuge; }

// The state of a rank over the shared memory `file`, which has shared_bytes(capacity) bytes; null with errno set.
State* open_state(int file, int socket, int rank, size_t capacity) {
  const size_t bytes = shared_bytes(capacity);
  // Huge pages have to begin at their own size in memory too.
  char* reserved = mmap(NULL, bytes + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NULL;
  char* base = reserved + (-(uintptr_t)reserved & (kHuge - 1));
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return NULL;
  madvise(base, bytes, MADV_HUGEPAGE);  // as far as the system gives them
  for (size_t i = 0; i < bytes; i += 4096) {
    atomic_fetch_add((_Atomic unsigned char*)(base + i), 0);  // the other rank does the same
  }
#ifdef MADV_COLLAPSE
  madvise(base, bytes, MADV_COLLAPSE);
#endif
  State* s = calloc(1, sizeof *s);
  char* scratch = aligned_alloc(4096, kReceive);
  if (s == NULL || scratch == NULL) return NULL;
  memset(scratch, 0, kReceive);
  s->scratch = scratch;
  s->rank = rank;
  s->socket = socket;
  s->capacity = capacity;
  for (int r = 0; r < 2; ++r) {
    s->flags[r] = (_Atomic uint64_t*)(base + r * 4096);
    s->boxes[r] = base + kHuge + r * kPiece;
    s->buffers[r] = base + 2 * kHuge + r * capacity;
  }
  return s;
}

static inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// What of the half of `bytes` goes through a box at once.
static inline size_t piece_of(size_t bytes) { return smaller(bytes / 8 * 4, kPiece); }

static inline size_t place(State* s, size_t bytes, long parts) {
  return (size_t)(s->part++ % parts) * ((bytes + kLine - 1) / kLine * kLine);
}

static void dirty(State* s, char* data, size_t bytes, long parts) {
  bytes = parts * ((bytes + kLine - 1) / kLine * kLine);
  for (size_t i = 0; i < bytes; i += 4096) {
    memset(data + i, 0, smaller(4096, bytes - i));  // in small pieces, since a large memset may go around the caches
  }
  s->part = 0;
}

static inline void copy(char* restrict to, const char* restrict from, size_t bytes) {
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) *(Line*)(to + i) = *(const Line*)(from + i);
  for (; i < bytes; i += 4) *(float*)(to + i) = *(const float*)(from + i);
}

// Both become their sum.
static inline void add(char* restrict a, char* restrict b, size_t bytes) {
  size_t i = 0;
  for (; i + kLine <= bytes; i += kLine) {
    *(Line*)(a + i) = *(Line*)(b + i) = *(const Line*)(a + i) + *(const Line*)(b + i);
  }
  for (; i < bytes; i += 4) *(float*)(a + i) = *(float*)(b + i) = *(const float*)(a + i) + *(const float*)(b + i);
}

int empty(State* s, char* x, size_t bytes, long parts) {
  (void)s, (void)x, (void)bytes, (void)parts;
  return 0;
}

// kRoundTrips times a flag to the other rank and one back.
int flag(State* s, char* x, size_t bytes, long parts) {
  (void)x, (void)bytes, (void)parts;
  _Atomic uint64_t* mine = s->flags[s->rank];
  _Atomic uint64_t* theirs = s->flags[1 - s->rank];
  for (int i = 0; i < kRoundTrips; ++i) {
    ++s->flag;
    if (s->rank == 0) atomic_store_explicit(mine, s->flag, memory_order_release);
    while (atomic_load_explicit(theirs, memory_order_acquire) < s->flag) {
    }
    if (s->rank == 1) atomic_store_explicit(mine, s->flag, memory_order_release);
  }
  return 0;
}

int before_own_box(State* s, char* x, size_t bytes, long parts) {
  (void)x;
  dirty(s, s->boxes[s->rank], piece_of(bytes), parts);
  return 0;
}

int before_their_box(State* s, char* x, size_t bytes, long parts) {
  (void)x;
  dirty(s, s->boxes[1 - s->rank], piece_of(bytes), parts);
  return 0;
}

// A piece of x into a box.
int copy_out(State* s, char* x, size_t bytes, long parts) {
  const size_t piece = piece_of(bytes);
  copy(s->boxes[s->rank] + place(s, piece, parts), x + bytes - piece, piece);
  return 0;
}

// A box and a piece of x become their sum.
int add_from_peer(State* s, char* x, size_t bytes, long parts) {
  const size_t piece = piece_of(bytes);
  add(s->boxes[s->rank] + place(s, piece, parts), x + bytes - piece, piece);
  return 0;
}

// A box into a piece of x.
int copy_back(State* s, char* x, size_t bytes, long parts) {
  const size_t piece = piece_of(bytes);
  copy(x + bytes - piece, s->boxes[s->rank] + place(s, piece, parts), piece);
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
  add(s->buffers[s->rank] + from, s->buffers[1 - s->rank] + from, s->rank == 0 ? half : bytes - half);
  return 0;
}

// The buffer of rank 0 into x of rank 1.
int receive(State* s, char* x, size_t bytes, long parts) {
  if (s->rank == 1) {
    copy(x, s->buffers[0] + place(s, bytes, parts), bytes);
  }
  return 0;
}

// Moves `out` bytes of x to the other rank, and `in` bytes from there to where `to` points or, without it, nowhere.
static int stream(State* s, const char* x, size_t out, char* to, size_t in) {
  size_t sent = 0, got = 0;
  while (sent < out || got < in) {
    // In an exchange what came tells how far the other rank is.
    const size_t end = in > 0 ? smaller(out, got + kWindow) : out;
    if (sent < end) {
      const ssize_t n = send(s->socket, x + sent, end - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) {
        sent += (size_t)n;
      } else if (errno != EAGAIN && errno != EINTR) {
        return errno;
      }
    }
    if (got < in) {
      const ssize_t n = recv(s->socket, to ? to + got : s->scratch, smaller(in - got, kReceive), MSG_DONTWAIT);
      if (n > 0) {
        got += (size_t)n;
      } else if (n == 0) {
        return ECONNRESET;
      } else if (errno != EAGAIN && errno != EINTR) {
        return errno;
      }
    }
  }
  return 0;
}

// TCP: all of x to the other rank, while as much comes from there.
int exchange(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  return stream(s, x, bytes, NULL, bytes);
}

// TCP: x from rank 0 to rank 1 and back.
int ping_pong(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  const int error = s->rank == 0 ? stream(s, x, bytes, NULL, 0) : stream(s, x, 0, x, bytes);
  if (error != 0) return error;
  return s->rank == 0 ? stream(s, x, 0, x, bytes) : stream(s, x, bytes, NULL, 0);
}

// TCP: x of rank 0 to rank 1.
int send_one_way(State* s, char* x, size_t bytes, long parts) {
  (void)parts;
  return s->rank == 0 ? stream(s, x, bytes, NULL, 0) : stream(s, x, 0, x, bytes);
}
