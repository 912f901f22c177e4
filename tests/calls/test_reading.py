"""Parts that ranks read straight from each other's memory: with the same results as through bounce buffers.

Only what lies on large pages is read, and only where the kernel lets a process look into another one. So these tests
make such memory, and take the permission away by a filter of system calls.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pool
import pytest
import replicas
from paths import python_path
from pool import NOTICED, ProcessGroup

LARGE_PAGE = 2 << 20
READ_BYTES = 4096  # instead of 256 KiB, so that parts of a few KiB are read
ROOM = 4 << 20  # of each rank: input, output
PARTS = ("all_gather", "all_to_all", "gather", "scatter")


def reason_against_large_pages() -> str:
    """Why there are none here, or empty."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        return "the system gives no large pages (transparent_hugepage/enabled)"
    release = tuple(int(n) for n in platform.release().split("-")[0].split(".")[:2])
    return "" if release >= (6, 7) else f"Linux {platform.release()} does not say what lies on large pages; 6.7 does"


NO_LARGE_PAGES = reason_against_large_pages()
needs_large_pages = pytest.mark.skipif(bool(NO_LARGE_PAGES), reason=NO_LARGE_PAGES)


class Memory:
    """Bytes on large pages, or on small ones."""

    def __init__(self, nbytes: int, large: bool) -> None:
        self._mapping = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._mapping.madvise(mmap.MADV_HUGEPAGE if large else mmap.MADV_NOHUGEPAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        begin = -whole.ctypes.data % LARGE_PAGE
        self.bytes = whole[begin : begin + nbytes]
        self.bytes[:] = 0
        self._used = 0

    def empty(self, count: int, dtype: str) -> Any:
        """An array; its start moves on, to other places in lines and pages."""
        begin = self._used = -(-self._used // 64) * 64
        self._used += count * np.dtype(dtype).itemsize
        return self.bytes[begin : self._used].view(dtype)


def arrays(large: bool) -> tuple[Memory, Memory]:
    return Memory(ROOM, large), Memory(ROOM, large)


def values(seed: int, owner: int, count: int, dtype: str) -> Any:
    return np.random.default_rng([seed, owner]).integers(0, 100, count).astype(dtype)


def expected(collective: str, seed: int, comm: Any, counts: list[int], root: int, dtype: str) -> Any:
    """What this rank gets. counts: the lengths of parts, [from * size + to] for all_to_all."""
    n, me = comm.size, comm.rank
    if collective in ("all_gather", "gather"):
        return np.concatenate([values(seed, r, counts[r], dtype) for r in range(n)])
    if collective == "scatter":
        begin = sum(counts[:me])
        return values(seed, root, sum(counts), dtype)[begin : begin + counts[me]]
    parts = []
    for r in range(n):
        row = counts[r * n : (r + 1) * n]
        begin = sum(row[:me])
        parts.append(values(seed, r, sum(row), dtype)[begin : begin + row[me]])
    return np.concatenate(parts)


def call(comm: Any, collective: str, memory: tuple[Memory, Memory], counts: list[int], case: int, dtype: str) -> None:
    """One collective on arrays of that memory, whose result is checked."""
    n, me, root = comm.size, comm.rank, case % comm.size
    mine = {"all_to_all": sum(counts[me * n : (me + 1) * n]), "scatter": sum(counts)}.get(
        collective, counts[me % len(counts)]
    )
    want = expected(collective, case, comm, counts, root, dtype)
    for of in memory:
        of._used = 64 * (case % 7)
    x = memory[0].empty(mine, dtype)
    x[:] = values(case, me, mine, dtype)
    out = memory[1].empty(len(want), dtype)
    out[:] = 99
    if collective == "all_gather" and case % 3 == 0:  # in place
        x = out[sum(counts[:me]) : sum(counts[: me + 1])]
        x[:] = values(case, me, mine, dtype)
    if collective == "all_gather":
        comm.all_gather(x, counts=counts, out=out)
    elif collective == "gather":
        comm.gather(x, root=root, counts=counts, out=out if me == root else None)
    elif collective == "scatter":
        comm.scatter(x if me == root else None, root=root, counts=counts, out=out)
    else:
        comm.all_to_all(x, counts=counts[me * n : (me + 1) * n], out=out)
    if collective != "gather" or me == root:
        assert np.array_equal(out, want), (collective, counts, case)
    assert np.array_equal(x, values(case, me, mine, dtype))


def lengths(collective: str, n: int) -> list[list[int]]:
    """Even parts, parts of which some are too short to be read or empty, and parts of nothing else but one."""
    number = n * n if collective == "all_to_all" else n
    some = [[4096], [5000], [30_011], [9000, 3, 0, 4097, 20_000], [0] * (number - 1) + [50_000]]
    return [list(itertools.islice(itertools.cycle(pattern), number)) for pattern in some]


def many_calls(comm: Any, large: list[bool]) -> None:
    memory = arrays(large[comm.rank])
    # Ranks of a group have other numbers than in the world.
    reverse = comm.split(0, -comm.rank)
    for group, times in ((comm, 3), (reverse, 1), (comm.split(comm.rank % 2), 1)):
        case = 0
        for collective in PARTS:
            for counts, dtype in itertools.product(lengths(collective, group.size), ("uint8", "float64")):
                for _ in range(times):
                    case += 1
                    call(group, collective, memory, counts, case, dtype)
            group.all_reduce(np.ones(3))  # something between that uses the same lines and slots
    several(comm, memory)


def several(comm: Any, memory: tuple[Memory, Memory]) -> None:
    """Works in flight beside each other, one of which is of a list of arrays, which is not read."""
    for of in memory:
        of._used = 0
    inputs = [memory[0].empty(50_000, "uint8") for _ in range(6)]
    outputs = [memory[1].empty(50_000 * comm.size, "uint8") for _ in range(6)]
    for i, x in enumerate(inputs):
        x[:] = values(i, comm.rank, len(x), "uint8")
    works = [comm.all_gather(x, out=out, async_op=True) for x, out in zip(inputs, outputs, strict=True)]
    listed = comm.all_gather([inputs[0], inputs[1]])
    for i, (work, out) in enumerate(zip(works, outputs, strict=True)):
        work.wait()
        want = np.concatenate([values(i, r, 50_000, "uint8") for r in range(comm.size)])
        assert np.array_equal(out, want), i
    assert all(np.array_equal(a, b) for a, b in zip(listed, outputs, strict=False))


@needs_large_pages
@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_results_are_the_same_on_any_pages(pools: Any, n: int, transport: str) -> None:
    group = pools.get(n, transport, read_bytes=READ_BYTES)
    for large in ([True] * n, [False] * n, [r != 1 for r in range(n)]):
        group.run(many_calls, large)


def refuse_reads() -> None:
    """From now on the kernel refuses process_vm_readv to this thread."""
    word = ctypes.c_uint32

    class Instruction(ctypes.Structure):
        _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", word))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction)))

    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    instructions = (Instruction * 4)(
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, number),  # unless it is that one, skip an instruction
        (0x06, 0, 0, 0x00050000 | 1),  # return EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allow
    )
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(4, instructions)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(program), 0, 0)):  # no new privileges, the filter
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


needs_filter = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the filter of system calls knows x86-64 and aarch64 only"
)


def after_refusal(comm: Any, refused: list[int], calls_before: int, large: bool) -> str:
    memory = arrays(large)
    for case in range(calls_before):
        call(comm, "all_gather", memory, [8192] * comm.size, case, "uint8")
    if comm.rank in refused:
        refuse_reads()
    for case in range(20):
        call(comm, "all_gather", memory, [8192] * comm.size, case, "uint8")
    return "returned"


@pytest.fixture
def fresh_group() -> Any:
    """Processes that may be spoilt, with a short deadline."""
    group = ProcessGroup(2, "shm", limits={"read_bytes": READ_BYTES}, timeout=2.0)
    yield group
    group.close()


@needs_large_pages
@needs_filter
def test_a_rank_that_may_not_read_makes_all_go_through_boxes(fresh_group: Any) -> None:
    assert fresh_group.run(after_refusal, [1], 0, True) == ["returned"] * 2


@needs_filter
def test_what_lies_on_small_pages_is_not_read(fresh_group: Any) -> None:
    assert fresh_group.run(after_refusal, [0, 1], 3, False) == ["returned"] * 2


@needs_large_pages
@needs_filter
def test_a_read_that_is_refused_is_an_error_on_every_rank_at_once(fresh_group: Any) -> None:
    """This also shows that large pages are read at all: else nothing would fail."""
    outcomes = fresh_group.outcomes(after_refusal, [1], 3, True)
    for outcome in outcomes:
        assert type(outcome.error).__name__ == "PeerError", outcome.text
        assert "does not let rank 1" in str(outcome.error) and "read the memory of rank 0" in str(outcome.error)
        assert "Operation not permitted" in str(outcome.error)
    assert outcomes[1].error.peer == 0


def read_for_ever(comm: Any, memory: tuple[Memory, Memory] | None = None) -> None:
    memory = arrays(True) if memory is None else memory
    pool.say("reading")
    for case in itertools.count():
        collective = ("all_to_all", "all_gather")[case % 2]
        parts = comm.size if collective == "all_gather" else comm.size**2
        call(comm, collective, memory, [500_000 // comm.size] * parts, case, "uint8")


@needs_large_pages
def test_killed_while_others_read(pools: Any) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        group = pools.get(3, "shm", read_bytes=READ_BYTES)
        group.start(read_for_ever)
        for rank in group.ranks:
            assert rank.event() == "reading"
        time.sleep(float(rng.uniform(0, 0.05)))  # no synchronisation: any moment is as good
        since = time.monotonic()
        group.ranks[1].signal(signal.SIGKILL)
        for rank, outcome in enumerate(group.collect(20)):
            if rank != 1:
                assert type(outcome.error).__name__ == "PeerError", outcome.text
                assert outcome.error.peer == 1
                assert outcome.ended - since < NOTICED


def read_until_stopped(comm: Any) -> tuple[bool, str]:
    """On a survivor: after the failure its arrays are its own again, whatever the stopped rank does later."""
    memory = arrays(True)
    try:
        read_for_ever(comm, memory)
    except Exception as error:
        for of in memory:
            of.bytes[:] = 7
        pool.say(type(error).__name__)
        pool.hear()
        return all(bool((of.bytes == 7).all()) for of in memory), type(error).__name__
    return False, "no error"


@needs_large_pages
def test_one_that_comes_to_itself_again_spoils_nobody(fresh_group: Any) -> None:
    fresh_group.start(read_until_stopped)
    for rank in fresh_group.ranks:
        assert rank.event() == "reading"
    fresh_group.ranks[1].signal(signal.SIGSTOP)
    assert fresh_group.ranks[0].event() == "DeadlineError"
    fresh_group.ranks[1].signal(signal.SIGCONT)
    assert fresh_group.ranks[1].event() in ("DeadlineError", "PeerError")
    for rank in fresh_group.ranks:
        rank.tell("go on")
    for outcome in fresh_group.collect(20):
        assert outcome.error is None and outcome.value[0], outcome


def late_reader(comm: Any) -> str:
    """Rank 1 enters the first call and is stopped before it reads. The others read from it, disagree about the second
    call, and rank 0 then writes what it gave to the first one anew. Only now rank 1 goes on."""
    x = Memory(ROOM, True).empty(50_000, "uint8")
    x[:] = comm.rank + 1
    if comm.rank != 1:
        pool.hear()
    first = comm.all_gather(x, counts=[len(x)] * comm.size, async_op=True)
    if comm.rank == 1:
        pool.say("entered")
        first.wait()
        return "returned"
    second = comm.all_reduce(np.ones(5, "float32" if comm.rank == 0 else "int32"), async_op=True)
    try:
        second.wait()
    except Exception as error:
        assert type(error).__name__ == "MismatchError"
    x[:] = 99
    pool.say("written anew")
    first.wait()
    return "returned"


@needs_large_pages
def test_what_a_failed_rank_writes_later_is_nobodys_result(pools: Any) -> None:
    group = pools.get(3, "shm", read_bytes=READ_BYTES)
    group.start(late_reader)
    assert group.ranks[1].event() == "entered"
    group.ranks[1].stop()
    for rank in (0, 2):
        group.ranks[rank].tell("go on")
    for rank in (0, 2):
        assert group.ranks[rank].event() == "written anew"
    group.ranks[1].signal(signal.SIGCONT)
    for outcome in group.collect(20):
        assert type(outcome.error).__name__ == "MismatchError", outcome


REPLICAS = """
sys.path[:] = sys.argv[2].split(":")
import test_reading

def work(comm, replica):
    memory = test_reading.arrays(True)
    for case in range(6):  # longer than the least that is read
        test_reading.call(comm, "all_gather", memory, [300_000] * comm.size, case, "uint8")
        test_reading.call(comm, "all_to_all", memory, [270_000] * comm.size**2, case, "uint8")
    return True

say(done=in_threads(work))
"""


@needs_large_pages
def test_threads_of_several_processes_read_each_other() -> None:
    with replicas.job(REPLICAS, [2, 2], "shm", [python_path()]) as processes:
        assert [process.hear()["done"] for process in processes] == [[True, True]] * 2
