/* How a rank sleeps, and how others wake it.
 *
 * The rank has THREADS threads that wait, each for a work of its own, and a work ends when all WAKERS other ranks have
 * published their flag for it. The thread that drives moves all works of the rank. A thread that is never woken is an
 * invalid end state.
 *
 *   -DTHREADS=2  threads of the rank
 *   -DTSO        stores go through a store buffer for each processor, as on x86
 *   -DBOUNDED    sleeps end by themselves after a while (kSleepMs)
 *   -DFENCE      a full fence in Domain::wake(), which the C++ does not have: see there
 *   -DNO_...     a step is taken out, see check_models.py: then something must go wrong
 */
#ifndef THREADS
#define THREADS 1
#endif
#ifndef WAKERS
#define WAKERS 2
#endif

bool flag[THREADS * WAKERS]; /* of each work */
byte sleeping;               /* ControlPage::sleeping */
bool doorbell;               /* the eventfd: readable */

/* Of the engine, under its lock. */
bool locked;
byte sleepers;
bool finished[THREADS];
bool returned[THREADS];
byte ended;     /* finished_ */
byte announced; /* announced_ */
byte owed;      /* rings_owed_ */
byte rung_at[THREADS];

#define LOCK atomic { !locked -> locked = true }
#define UNLOCK locked = false

#if WAKERS == 2
#define ALL_THERE(w) (flag[(w) * WAKERS] && flag[(w) * WAKERS + 1])
#else
#define ALL_THERE(w) (flag[w])
#endif

/* Driver::drive(): a work ends when all of its flags are there. */
inline drive() {
  atomic {
    moved = false;
    w = 0;
    do
    :: w == THREADS -> break
    :: w < THREADS && !finished[w] && ALL_THERE(w) -> finished[w] = true; ended++; moved = true; w++
    :: w < THREADS && (finished[w] || !ALL_THERE(w)) -> w++
    od;
    w = 0
  }
}
/* Engine::wake_waiters() */
inline wake_waiters() {
#ifndef NO_ANNOUNCEMENT
  atomic {
    if
    :: announced != ended ->
      announced = ended;
      if
      :: sleepers > 0 -> doorbell = true; owed = sleepers
      :: else
      fi
    :: else
    fi
  }
#else
  skip
#endif
}

/* Engine::change_sleepers() and HostMemory::set_sleeping() */
#if defined(TSO)
bool pending;  /* the store of `sleeping` is still in the store buffer */
byte stored;
#define FENCED !pending
#define SET_SLEEPING atomic { stored = sleepers; pending = true }
#else
#define FENCED true
#define SET_SLEEPING sleeping = sleepers
#endif

/* Engine::wait() and Engine::sleep(), without the looks before that only save time. */
proctype waiter(byte me) {
  byte w;
  bool moved;
  LOCK;
  do
  :: finished[me] -> break
  :: else ->
    drive();
    wake_waiters();
    if
    :: finished[me] -> break
    :: else
    fi;
#ifndef NO_FLAG
    sleepers++;
    SET_SLEEPING;
#ifndef NO_SLEEPER_FENCE
    FENCED;
#endif
#endif
#ifndef NO_SECOND_LOOK
    drive();
#endif
    if
    :: !moved ->
      rung_at[me] = announced;
      UNLOCK;
      /* poll() */
      if
      :: doorbell
#ifdef BOUNDED
      :: timeout
#endif
      fi;
      LOCK;
      atomic {
#ifndef NO_DEBT
        if
        :: rung_at[me] != announced && owed > 0 -> owed--
        :: else
        fi;
        if
        :: owed == 0 -> doorbell = false
        :: else
        fi
#else
        doorbell = false
#endif
      };
#ifndef NO_LAST_LOOK
      drive() /* the ring may have been for the work of another thread */
#endif
    :: else
    fi;
#ifndef NO_FLAG
    sleepers--;
    SET_SLEEPING
#endif
  od;
  wake_waiters();
  UNLOCK;
  returned[me] = true
}

#ifdef TSO
proctype drain_sleeper() {
end:
  do
  :: d_step { pending -> sleeping = stored; pending = false }
  od
}
#endif

#if THREADS == 2
/* What thread 0 waits for comes only when thread 1 has gone on. */
#define MAY_COME(w) (!done[w] && (w == 1 || returned[1]))
#else
#define MAY_COME(w) (!done[w])
#endif

/* Another rank: FlagWords::signal() and wake_peers(), once for each work, in any order. */
proctype waker(byte me) {
  byte w;
  bool done[THREADS];
  byte count;
  bool buffered;
  byte address;
  do
  :: count == THREADS -> break
  :: count < THREADS ->
      atomic {
        if
        :: MAY_COME(0) -> w = 0
#if THREADS > 1
        :: MAY_COME(1) -> w = 1
#endif
#if THREADS > 2
        :: MAY_COME(2) -> w = 2
#endif
        fi
      };
      done[w] = true;
      count++;
#ifdef NO_WAKE_ORDER
      if
      :: sleeping > 0 -> doorbell = true
      :: else
      fi;
      flag[w * WAKERS + me] = true
#else
#ifdef TSO
      /* The store waits in the buffer while the load goes ahead, or does not. */
      if
#ifndef FENCE
      :: skip;
        if
        :: sleeping > 0 -> flag[w * WAKERS + me] = true; doorbell = true
        :: else -> flag[w * WAKERS + me] = true
        fi
#endif
      :: flag[w * WAKERS + me] = true;
        if
        :: sleeping > 0 -> doorbell = true
        :: else
        fi
      fi
#else
      flag[w * WAKERS + me] = true;
#ifndef NO_RING
      if
      :: sleeping > 0 -> doorbell = true
      :: else
      fi
#endif
#endif
#endif
  od
}

init {
  byte i;
  atomic {
    do
    :: i == THREADS -> break
    :: else -> run waiter(i); i++
    od;
    i = 0;
    do
    :: i == WAKERS -> break
    :: else -> run waker(i); i++
    od;
#ifdef TSO
    run drain_sleeper();
#endif
    i = 0
  }
}
