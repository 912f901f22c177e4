/* What ranks do that disagree about a collective.
 *
 * N ranks call COLLS collectives one after the other. In one of them, any, some ranks have another signature than others,
 * and so perhaps run another schedule. Then no rank may return from that collective, and each ends with an error: either
 * it has seen a header that differs, or the report of another rank has reached it. A rank that waits for ever is an
 * invalid end state. Without a disagreement all return from all.
 *
 *   -DN=3        ranks
 *   -DCOLLS=1    collectives
 *   -DNO_...     a step is taken out, see check_models.py: then something must go wrong
 */
#ifndef N
#define N 2
#endif
#ifndef COLLS
#define COLLS 2
#endif
#define LOWEST 0
#define HIGHEST (N - 1)

/* Schedules: all await all headers; or the root does, and the others await it and then its signal. */
#define EXCHANGE 0
#define ROOT_LOWEST 1
#define ROOT_HIGHEST 2
byte schedule[COLLS * 2]; /* by collective and signature */

byte odd = COLLS; /* the collective that ranks disagree about */
bool deviates[N];

/* Of rank r and collective s: the header line, 1 + signature once it is published, and the root's signal. */
byte header[N * COLLS];
bool flag[N * COLLS];
/* ControlPage: 1 + the number of the collective that the report is about; `aborted`. */
byte report[N];
bool aborted[N];

bool failed[N];
byte returned[N];

#define SIGNATURE(r, s) (s == odd && deviates[r])
#define DIFFERS(r) (header[(r) * COLLS + s] != 0 && header[(r) * COLLS + s] != 1 + SIGNATURE(me, s))
#if N == 2
#define ANY_DIFFERS (DIFFERS(0) || DIFFERS(1))
#define ANY_REPORT (report[0] || report[1])
#define REPORT_UP_TO(s) ((report[0] && report[0] <= s + 1) || (report[1] && report[1] <= s + 1))
#else
#define ANY_DIFFERS (DIFFERS(0) || DIFFERS(1) || DIFFERS(2))
#define ANY_REPORT (report[0] || report[1] || report[2])
#define REPORT_UP_TO(s) \
  ((report[0] && report[0] <= s + 1) || (report[1] && report[1] <= s + 1) || (report[2] && report[2] <= s + 1))
#endif

/* FailureHandler::fail() and publish() */
inline fail(sequence) {
  failed[me] = true;
  report[me] = 1 + sequence;
#ifndef NO_TELL
  t = 0;
  do
  :: t < N -> aborted[t] = true; t++
  :: t == N -> t = 0; break
  od;
#endif
  goto end_of_rank
}

/* While a rank waits: FailureMonitor::check_others() and check_works(). */
#define RECEIVED (aborted[me] && ANY_REPORT)
#ifdef NO_LOOK
#define ALARM (RECEIVED)
#else
#define ALARM (RECEIVED || ANY_DIFFERS)
#endif

/* FlagWords::await() and find_mismatch() */
inline await_header(r) {
  if
  :: header[(r) * COLLS + s] != 0
  :: ALARM -> fail(s)
  fi;
#ifndef NO_COMPARISON
  if
  :: DIFFERS(r) -> fail(s)
  :: else
  fi
#endif
}

inline await_flag(r) {
  if
  :: flag[(r) * COLLS + s]
  :: ALARM -> fail(s)
  fi
}

inline await_headers() {
  r = 0;
  do
  :: r < N && r != me -> await_header(r); r++
  :: r < N && r == me -> r++
  :: r == N -> r = 0; break
  od
}

inline rooted(root) {
  if
  :: me == root ->
#ifdef NO_WAIT_BEFORE_SIGNAL
    flag[me * COLLS + s] = true;
    await_headers()
#else
    await_headers();
    flag[me * COLLS + s] = true
#endif
  :: me != root ->
    await_header(root);
#ifndef NO_SYNCHRONISATION
    await_flag(root)
#endif
  fi
}

proctype rank(byte me) {
  byte s;
  byte r;
  byte t;
  do
  :: s == COLLS -> break
  :: else ->
    /* act_on_report_before_call() */
    if
    :: RECEIVED -> fail(s)
    :: else
    fi;
    header[me * COLLS + s] = 1 + SIGNATURE(me, s);
    if
    :: schedule[s * 2 + SIGNATURE(me, s)] == EXCHANGE -> await_headers()
    :: schedule[s * 2 + SIGNATURE(me, s)] == ROOT_LOWEST -> rooted(LOWEST)
    :: schedule[s * 2 + SIGNATURE(me, s)] == ROOT_HIGHEST -> rooted(HIGHEST)
    fi;
    /* stopped() */
    if
    :: RECEIVED && REPORT_UP_TO(s) -> fail(s)
    :: else
    fi;
    returned[me] = s + 1;
    s++
  od;
end_of_rank:
  if
  :: odd < COLLS -> assert(failed[me] && returned[me] <= odd)
  :: else -> assert(!failed[me] && returned[me] == COLLS)
  fi
}

init {
  byte i;
  byte x;
  atomic {
    select(x : 0 .. COLLS);
    odd = x;
    do
    :: i == N -> break
    :: i == 0 -> i++ /* signatures are only compared, so rank 0 may as well have the first */
    :: i > 0 && i < N ->
      if
      :: deviates[i] = false
      :: deviates[i] = true
      fi;
      i++
    od;
    if
#if N == 2
    :: !deviates[1] -> odd = COLLS
#else
    :: !deviates[1] && !deviates[2] -> odd = COLLS
#endif
    :: else
    fi;
    i = 0;
    do
    :: i == COLLS * 2 -> break
    :: else -> select(x : 0 .. 2); schedule[i] = x; i++
    od;
    i = 0;
    do
    :: i == N -> break
    :: else -> run rank(i); i++
    od;
    i = 0;
    x = 0
  }
}
