/* The ring of cells by which one rank sends messages to another over mapped memory (csrc/transports/mapped/link.cc; the
 * mail of mapped_mail.cc has the same ring). Each value is sent once, so a cell that is read too early or written too
 * early shows a wrong value.
 *
 *   -DTSO        stores go through a store buffer for each of the two, as on x86
 *   -DNO_...     a step is taken out, see check_models.py: then something must go wrong
 */
#define CELLS 2 /* kFifoCells */
#define MESSAGES 6

/* The writer's segment: word and payload of each cell. The reader's: its acknowledgements. */
#define WORD(i) (2 * ((i) % CELLS))
#define DATA(i) (2 * ((i) % CELLS) + 1)
#define ACK (2 * CELLS)
byte mem[2 * CELLS + 1];

#ifdef TSO
chan buffer[2] = [3] of { byte, byte };
#define STORE(address, value) buffer[me] ! address, value
#else
#define STORE(address, value) mem[address] = value
#endif

/* MappedLink::send() */
proctype writer(byte me) {
  byte written;
  byte acknowledged;
  do
  :: written == MESSAGES -> break
  :: else ->
    if
    :: written - acknowledged == CELLS ->
#ifndef NO_ACK
      atomic { mem[ACK] > acknowledged -> acknowledged = mem[ACK] }
#else
      acknowledged++
#endif
    :: else
    fi;
#ifdef NO_WORD_ORDER
    STORE(WORD(written), written + 1);
    STORE(DATA(written), 100 + written);
#else
    STORE(DATA(written), 100 + written);
    STORE(WORD(written), written + 1);
#endif
    written++
  od
}

/* MappedLink::receive() */
proctype reader(byte me) {
  byte taken;
  do
  :: taken == MESSAGES -> break
  :: else ->
    mem[WORD(taken)] == taken + 1;
#ifdef NO_ACK_ORDER
    STORE(ACK, taken + 1);
    assert(mem[DATA(taken)] == 100 + taken);
#else
    assert(mem[DATA(taken)] == 100 + taken);
    STORE(ACK, taken + 1);
#endif
    taken++
  od
}

#ifdef TSO
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
  atomic {
    run writer(0);
    run reader(1);
#ifdef TSO
    run drain(0);
    run drain(1);
#endif
  }
}
