// What libstdc++ and its headers, made for a newer glibc, take from there and glibc 2.28 lacks. tools/sysroot.py puts
// it, hidden, into each library that needs it.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// Whether the process surely has one thread only: never sure here.
char __libc_single_threaded = 0;

unsigned arc4random(void) {
  unsigned number;
  if (getentropy(&number, sizeof number) != 0) {
    abort();
  }
  return number;
}

enum { kNanoseconds = 1000000000 };

// The time of the wall clock at which `clock` will show `until`, but at most a second from now: whoever sets the wall
// clock delays a wait by no more than that. Returns whether `until` has come.
static int wall_time(clockid_t clock, const struct timespec* until, struct timespec* wall) {
  struct timespec now;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, wall);
  long long left = (long long)(until->tv_sec - now.tv_sec) * kNanoseconds + (until->tv_nsec - now.tv_nsec);
  const int over = left <= 0;
  left = over ? 0 : left > kNanoseconds ? kNanoseconds : left;
  left += wall->tv_nsec;
  wall->tv_sec += left / kNanoseconds;
  wall->tv_nsec = left % kNanoseconds;
  return over;
}

// 0 too early is a spurious wakeup, for which each caller has to be ready.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  struct timespec wall;
  const int over = wall_time(clock, until, &wall);
  const int result = pthread_cond_timedwait(condition, mutex, &wall);
  return result == ETIMEDOUT && !over ? 0 : result;
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  for (;;) {
    struct timespec wall;
    const int over = wall_time(clock, until, &wall);
    const int result = pthread_mutex_timedlock(mutex, &wall);
    if (result != ETIMEDOUT || over) {
      return result;
    }
  }
}
