/* The handshake of collectives over mapped memory: header lines, slots, the guard of their reuse, symmetric memory.
 *
 * Each of N ranks runs COLLS collectives, each of any kind below, the same on all ranks. A rank has up to two of them in
 * flight. Each value that a rank writes occurs once, so a rank that reads a line or a slot too early, or after it was
 * written again, sees a wrong value: an assertion fails. A rank that waits for ever is an invalid end state.
 *
 * Each inline is named after the function of the C++ that it stands for. Lines and slots are fewer than there, so that
 * they come round again soon. Waits are blocking expressions here; how ranks sleep is in doorbell.pml.
 *
 *   -DN=3        ranks
 *   -DFLIGHT=1   every rank waits for one collective before it begins the next
 *   -DKIND=...   collectives of one kind only
 *   -DTSO        stores go through a store buffer for each rank, as on x86
 *   -DNO_...     a step is taken out, see check_models.py: then something must go wrong
 */
#ifndef N
#define N 2
#endif
#ifndef COLLS
#define COLLS 3
#endif
#define LINES 2 /* kHeaderLines */
#define SLOTS 2 /* Limits::slots */
#define CHUNKS 3

/* Where everything lies in the segment of rank r (memory/domain.h). Of a header line, the word and the payload. */
#define PER (2 * LINES + 2 * SLOTS + SLOTS * N + 1 + 4 * N)
#define WORD(r, s) ((r) * PER + 2 * ((s) % LINES))
#define PAYLOAD(r, s) (WORD(r, s) + 1)
#define FLAG(r, f, i) ((r) * PER + 2 * LINES + ((f) - 1) * SLOTS + (i) % SLOTS)
#define BOUNCE(r, i, part) ((r) * PER + 2 * LINES + 2 * SLOTS + ((i) % SLOTS) * N + (part))
#define COMPLETED(r) ((r) * PER + 2 * LINES + 2 * SLOTS + SLOTS * N)
#define INPUT(r, part) (COMPLETED(r) + 1 + ARRAY * 2 * N + (part))
#define OUTPUT(r, part) (INPUT(r, part) + N)
#define ARRAY (in_flight == 1 -> 0 : s % 2)
byte mem[N * PER];

#ifdef TSO
chan buffer[N] = [4] of { byte, byte };
#define STORE(address, value) buffer[me] ! address, value
#else
#define STORE(address, value) mem[address] = value
#endif

/* What rank r contributes to chunk c of collective s; r == N: the reduced value. */
#define VALUE(s, c, r) (1 + ((s) * CHUNKS + (c)) * (N + 1) + (r))

#define INLINE 0    /* one_shot all_reduce of a few bytes: through the header lines */
#define ONE_SHOT 1  /* one_shot all_reduce: each rank reads the bounce buffers of all others, chunk by chunk */
#define TWO_SHOT 2  /* two_shot all_reduce: owners write into the bounce buffers of others */
#define SYMMETRIC 3 /* two_shot all_reduce on symmetric memory: entry and exit */
#define BROADCAST 4 /* one_shot broadcast: the root waits until chunks are read */
#define SWAPPED 5   /* ONE_SHOT of two ranks, which swap bounce buffers and write back what they read */
#define KINDS (N == 2 -> 6 : 5)
byte kind[COLLS];
byte base[COLLS]; /* Work::base, and SlotGuard::begins_ */
byte chunks[COLLS];

/* Of each rank: works started, a bit for each finished, Executor::completed. */
byte started[N];
byte finished[N];
byte completed[N];
byte in_flight; /* the same on all ranks */
byte known[N * N]; /* Executor::peers_completed() */

/* FlagWords::publish_header() */
inline signal_header() {
#ifdef NO_COUNT
  STORE(WORD(me, s), (s + 1) * 8) /* says that this collective is complete as well */
#else
  STORE(WORD(me, s), (s + 1) * 8 + (s + 1 - completed[me]))
#endif
}

/* FlagWords::signal() */
inline signal(flag, chunk) {
  STORE(FLAG(me, flag, b + chunk), b + chunk + 1)
}

/* FlagWords::await() and find_mismatch() */
inline await_header(r) {
#ifndef NO_HEADER_WAIT
  d_step {
    mem[WORD(r, s)] / 8 == s + 1;
    if
    :: known[me * N + r] < s + 1 - mem[WORD(r, s)] % 8 -> known[me * N + r] = s + 1 - mem[WORD(r, s)] % 8
    :: else
    fi
  }
#else
  skip
#endif
}

inline await(r, flag, chunk) {
  mem[FLAG(r, flag, b + chunk)] > b + chunk
}

/* The header stands for the first chunk's flag. */
inline await_copied(r, chunk) {
  if
  :: chunk == 0 -> await_header(r)
  :: else ->
#ifndef NO_FLAG_WAIT
    await(r, 1, chunk)
#else
    skip
#endif
  fi
}
inline signal_copied(chunk) {
  if
  :: chunk == 0 -> signal_header()
  :: else -> signal(1, chunk)
  fi
}

/* SlotGuard::may_start() and InFlight::start_queued(): works start in order. */
inline may_start() {
  byte needed = 0;
  byte reach;
  byte t;
  atomic {
    started[me] == s && s < completed[me] + in_flight;
#ifndef NO_LINE_GUARD
    if
    :: s + 1 > LINES -> needed = s + 1 - LINES
    :: else
    fi;
#endif
#ifndef NO_SLOT_GUARD
    reach = b + (chunks[s] < SLOTS -> chunks[s] : SLOTS);
    if
    :: chunks[s] > 0 && reach > SLOTS ->
      t = s;
      do
      :: t > needed && base[t - 1] < reach - SLOTS -> needed = t; break
      :: t > needed && base[t - 1] >= reach - SLOTS -> t--
      :: t <= needed -> break
      od
    :: else
    fi;
#endif
    t = 0
  }
  atomic {
    completed[me] >= needed;
    do
    :: t == N -> break
    :: t < N && t == me -> t++
    :: t < N && t != me -> known[me * N + t] >= needed || mem[COMPLETED(t)] >= needed; t++
    od;
    started[me]++;
    needed = 0;
    reach = 0;
    t = 0
  }
}

/* InFlight::complete() and publish_completed() */
inline complete() {
  atomic {
    finished[me] = finished[me] | (1 << s);
    do
    :: completed[me] < COLLS && (finished[me] >> completed[me]) & 1 -> completed[me]++
    :: else -> break
    od;
    STORE(COMPLETED(me), completed[me])
  }
}

/* Something for each other rank r. One step, unless it has to wait; that is enough, since what a rank waits for stays:
   whatever could happen between two reads of a step could as well happen before all of them. */
#define EACH_OTHER(...) \
  atomic { \
    r = 0; \
    do \
    :: r < N && r != me -> __VA_ARGS__; r++ \
    :: r < N && r == me -> r++ \
    :: r == N -> r = 0; break \
    od \
  }

/* Chunk c of all others through bounce buffer or header line, after the wait for it. */
#ifdef NO_ACQUIRE
/* A read that may come before the wait. */
#define WAIT_AND_READ(wait, address, value) \
  if \
  :: skip; x = mem[address]; wait; assert(x == value) \
  :: skip; wait; assert(mem[address] == value) \
  fi; x = 0
#else
#define WAIT_AND_READ(wait, address, value) wait; assert(mem[address] == value)
#endif

inline run_inline() {
#ifdef NO_ORDER
  signal_header();
  STORE(PAYLOAD(me, s), VALUE(s, 0, me));
#else
  STORE(PAYLOAD(me, s), VALUE(s, 0, me));
  signal_header();
#endif
  EACH_OTHER(WAIT_AND_READ(await_header(r), PAYLOAD(r, s), VALUE(s, 0, r)))
}

/* Operand::owner() */
#define OWNER(r, i) (kind[s] == SWAPPED && (i) / SLOTS % 2 -> 1 - (r) : (r))

inline run_one_shot() {
  do
  :: c == CHUNKS -> break
  :: else ->
    STORE(BOUNCE(OWNER(me, b + c), b + c, 0), VALUE(s, c, me));
    signal_copied(c);
    atomic {
      EACH_OTHER(await_copied(r, c));
      EACH_OTHER(assert(mem[BOUNCE(OWNER(r, b + c), b + c, 0)] == VALUE(s, c, r)));
      if
      :: kind[s] == SWAPPED -> EACH_OTHER(STORE(BOUNCE(OWNER(r, b + c), b + c, 0), VALUE(s, c, r)))
      :: else
      fi;
      c++
    }
  od
}

inline run_two_shot() {
  do
  :: c == CHUNKS -> break
  :: else ->
    EACH_OTHER(STORE(BOUNCE(me, b + c, r), VALUE(s, c, me)));
    signal_copied(c);
    EACH_OTHER(await_copied(r, c));
#ifdef NO_REDUCED_ORDER
    signal(2, c);
#endif
    EACH_OTHER(assert(mem[BOUNCE(r, b + c, me)] == VALUE(s, c, r)); STORE(BOUNCE(r, b + c, me), VALUE(s, c, N)));
#ifndef NO_REDUCED_ORDER
    signal(2, c);
#endif
    atomic {
#ifndef NO_REDUCED_WAIT
      EACH_OTHER(await(r, 2, c));
#endif
      EACH_OTHER(assert(mem[BOUNCE(me, b + c, r)] == VALUE(s, c, N)));
      c++
    }
  od
}

/* The caller fills its array before the call and uses the result after it. Two in flight have two arrays. */
inline run_symmetric() {
  atomic {
    do
    :: r < N -> STORE(INPUT(me, r), VALUE(s, 0, me)); r++
    :: r == N -> r = 0; break
    od
  };
  signal_header();
#ifndef NO_ENTRY
  EACH_OTHER(await_header(r));
#endif
  EACH_OTHER(assert(mem[INPUT(r, me)] == VALUE(s, 0, r)));
  EACH_OTHER(STORE(OUTPUT(r, me), VALUE(s, 0, N)));
  signal(2, 0);
  atomic {
#ifndef NO_EXIT
    EACH_OTHER(await(r, 2, 0));
#endif
    EACH_OTHER(assert(mem[OUTPUT(me, r)] == VALUE(s, 0, N)))
  }
}

/* Rank 0 is the root. */
inline run_broadcast() {
  do
  :: c == CHUNKS -> break
  :: me == 0 && c < CHUNKS ->
    if
    :: c == 2 -> EACH_OTHER(await_header(r))
    :: else
    fi;
#ifndef NO_READ_WAIT
    if
    :: c >= 2 -> EACH_OTHER(await(r, 2, c - 2))
    :: else
    fi;
#endif
    STORE(BOUNCE(0, b + c, 0), VALUE(s, c, 0));
    signal_copied(c);
    c++
  :: me != 0 && c < CHUNKS ->
    if
    :: c == 0 -> signal_header()
    :: else
    fi;
    atomic {
      await_copied(0, c);
      assert(mem[BOUNCE(0, b + c, 0)] == VALUE(s, c, 0))
    };
    if
    :: c + 2 < CHUNKS -> signal(2, c)
    :: else
    fi;
    c++
  od
}

/* Collective s of rank me: Executor::run(). */
proctype work(byte me; byte s) {
  byte b = 0;
  byte c = 0;
  byte r = 0;
#ifdef NO_ACQUIRE
  byte x = 0;
#endif
  b = base[s];
  may_start();
#ifdef NO_COMPLETION
  complete(); /* as soon as it has begun */
#endif
  if
  :: kind[s] == INLINE -> run_inline()
  :: kind[s] == ONE_SHOT || kind[s] == SWAPPED -> run_one_shot()
  :: kind[s] == TWO_SHOT -> run_two_shot()
  :: kind[s] == SYMMETRIC -> run_symmetric()
  :: kind[s] == BROADCAST -> run_broadcast()
  fi;
  r = 0;
#ifndef NO_COMPLETION
  complete()
#endif
}

#ifdef TSO
/* A processor writes its buffer out in order. */
proctype drain(byte me) {
  byte a;
  byte v;
end:
  do
  :: d_step { buffer[me] ? a, v -> mem[a] = v; a = 0; v = 0 }
#ifdef NO_RELEASE
  :: d_step { len(buffer[me]) > 1 -> buffer[me] ? a, v; buffer[me] ! a, v; a = 0; v = 0 } /* or not in order */
#endif
  od
}
#endif

init {
  byte s;
  byte r;
  byte chunk;
  atomic {
    do
    :: s == COLLS -> break
    :: else ->
#ifdef KIND
      kind[s] = KIND;
#else
      select(r : 0 .. KINDS - 1);
      kind[s] = r;
#endif
      if
      :: kind[s] == INLINE -> chunks[s] = 0
      :: kind[s] == SYMMETRIC -> chunks[s] = 1
      :: else -> chunks[s] = CHUNKS
      fi;
      base[s] = chunk;
      chunk = chunk + chunks[s];
      s++
    od;
#ifdef FLIGHT
    in_flight = FLIGHT;
#else
    if
    :: in_flight = 1
    :: in_flight = 2
    fi;
#endif
    r = 0;
    do
    :: r == N -> break
    :: else ->
#ifdef TSO
      run drain(r);
#endif
      s = 0;
      do
      :: s == COLLS -> break
      :: else -> run work(r, s); s++
      od;
      r++
    od;
    s = 0;
    r = 0;
    chunk = 0
  }
}
