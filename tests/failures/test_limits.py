"""Limits of the system, as on descriptors, address space and memory: a clear error, or it works."""

import json
import os
import signal
from pathlib import Path

import pytest
from replicas import job

SOON = 20.0  # seconds; what has to wait for a rank that never comes ends at START
START = 10.0
MEMORY = Path("/sys/fs/cgroup/memory")  # the controller of version 1
UNIFIED = Path("/sys/fs/cgroup")  # version 2, where it is mounted there

# A rank that limits itself, joins, and uses all kinds of memory and connections.
PROGRAM = r"""
import ctypes, json, os, resource, sys, time
import numpy as np
import collectives

limit = json.loads(sys.argv[1])
open_before = len(os.listdir("/proc/self/fd")) - 1
if "files" in limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_before + limit["files"],) * 2)
for name in ("AS", "FSIZE", "MEMLOCK"):
    if name in limit:
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() if name == "AS" else 0
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (used + limit[name],) * 2)
if "shm" in limit:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert libc.mount(None, b"/", None, 0x4000 | 0x40000, None) == 0  # MS_REC | MS_PRIVATE
    assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=%d" % limit["shm"]) == 0
    status = os.statvfs("/dev/shm")
    assert status.f_blocks * status.f_frsize == limit["shm"]
if "cgroup" in limit:
    with open(limit["cgroup"] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
report = {}
# Together, so that what a rank waits for is not the start of another's Python on a busy machine.
print("{}", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    with collectives.init(timeout=START) as comm:
        report["started"] = True
        assert comm.all_reduce(np.ones(1_000_000))[0] == comm.size
        with comm.split(0) as group:
            assert group.all_reduce(np.ones(10), async_op=True).result()[0] == comm.size
        comm.send(np.ones(100_000), (comm.rank + 1) % comm.size, async_op=True)
        assert comm.recv(np.zeros(100_000), (comm.rank - 1) % comm.size)[-1] == 1
        for _ in range(limit.get("arrays", 1)):
            x = comm.empty(8 << 20, np.uint8)
            x[...] = 1
            assert comm.all_reduce(x)[-1] == comm.size
            report.setdefault("arrays", []).append(x)
        report["arrays"] = len(report["arrays"])
        report["carried"] = comm.bytes_by_transport()
        del x
except Exception as error:
    report["error"], report["text"], report["peer"] = type(error).__name__, str(error), getattr(error, "peer", None)
    report.pop("arrays", None)
    del error
report["took"] = time.monotonic() - began
print(json.dumps(report), flush=True)
"""


def run(limits, transport="auto"):
    """What each rank reports, and what it has written to stderr; None for a rank that was killed."""
    reports, texts = [], []
    with job(f"START = {START}\n{PROGRAM}", limits, transport, start="") as ranks:
        for rank in ranks:
            rank.hear()
        for rank in ranks:
            rank.process.stdin.write(b"\n")
        for rank in ranks:
            out, text = rank.process.communicate(timeout=60)
            texts.append(text.decode())
            assert rank.process.returncode in (0, -signal.SIGKILL), (rank.process.returncode, texts[-1])
            reports.append(json.loads(out) if out else None)
    return reports, texts


def is_fine(report):
    return "error" not in report and report["arrays"] >= 1


@pytest.mark.parametrize("limited", [0, 1])
@pytest.mark.parametrize(
    ("transport", "files"), [("auto", k) for k in (2, 3, 5, 6, 8, 9, 12)] + [("tcp", k) for k in (2, 4, 6)]
)
def test_out_of_descriptors(transport, files, limited):
    """Wherever the start is when they run out: an error on all ranks, or a slower path and a word of it."""
    limits = [{}, {}, {}]
    limits[limited] = {"files": files}
    reports, texts = run(limits, transport)
    if all(map(is_fine, reports)):
        assert files > 2
        if transport == "auto" and any(r["carried"].get("tcp") for r in reports):
            assert any("out of file descriptors" in text for text in texts), texts
        return
    own = reports[limited]
    assert not any(map(is_fine, reports)), reports
    assert own["error"] == "OSError", (reports, texts)
    assert "file descriptors" in own["text"] and "ulimit -n" in own["text"], own
    for rank, report in enumerate(reports):
        assert report["took"] < SOON, report
        if rank != limited:
            assert report["error"] in ("PeerError", "DeadlineError"), report
            assert f"rank {limited}" in report["text"], report


def test_enough_descriptors():
    """So that the sweep above ends on both sides."""
    reports, texts = run([{"files": 40}, {"files": 40}, {"files": 40}])
    assert all(map(is_fine, reports)), reports
    assert all(not r["carried"].get("tcp") for r in reports), reports
    assert texts == ["", "", ""]


@pytest.mark.parametrize(
    ("limit", "advice"), [({"AS": 1 << 30}, "ulimit -v"), ({"FSIZE": 1 << 20}, "ulimit -f")], ids=["AS", "FSIZE"]
)
def test_no_room_for_segments(limit, advice, monkeypatch):
    if "AS" in limit:  # else they are made to fit
        monkeypatch.setenv("COLLECTIVES_SYMMETRIC_HEAP", "4G")
        monkeypatch.setattr("replicas.KEPT", ("COLLECTIVES_SYMMETRIC_HEAP",))
    reports, _ = run([{}, limit, {}])
    assert reports[1]["error"] == "OSError", reports
    assert advice in reports[1]["text"]
    assert "COLLECTIVES_SYMMETRIC_HEAP" in reports[1]["text"]
    for survivor in (reports[0], reports[2]):
        assert survivor["error"] == "PeerError", survivor
        assert "rank 1" in survivor["text"]
        assert survivor["took"] < SOON


def test_the_advice_helps(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_SYMMETRIC_HEAP", "16M")
    limit = {"AS": 16 << 30, "FSIZE": 4 << 30}
    monkeypatch.setattr("replicas.KEPT", ("COLLECTIVES_SYMMETRIC_HEAP",))
    reports, _ = run([limit, limit, limit])
    assert all(map(is_fine, reports)), reports


@pytest.mark.parametrize(
    "limits", [[{}, {"AS": 1 << 30}, {}], [{"AS": 64 << 30}] * 8], ids=["one-of-three", "eight-with-64-GiB"]
)
def test_the_heap_fits_into_the_address_space(limits):
    """All ranks agree on a size by the tightest limit."""
    reports, texts = run(limits)
    assert all(map(is_fine, reports)), (reports, texts)
    assert all("shm" in r["carried"] for r in reports)


@pytest.mark.parametrize("heap", [None, "16G"], ids=["derived", "chosen"])
def test_threads_with_little_address_space(heap):
    program = (
        "import collectives, resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
        "try:\n    print(len(collectives.local_group(2)))\n"
        "except OSError as error:\n    print(error)\n"
    )
    if heap:
        program = f"import os\nos.environ['COLLECTIVES_SYMMETRIC_HEAP'] = {heap!r}\n" + program
    with job(program, [{}], start="") as [rank]:
        out, text = rank.process.communicate(timeout=60)
    assert (b"COLLECTIVES_SYMMETRIC_HEAP" in out) if heap else (out == b"2\n"), (out, text)


@pytest.mark.parametrize("limits", [{"MEMLOCK": 0}, {"shm": 64 << 10}], ids=["MEMLOCK", "shm"])
def test_what_is_not_needed(limits):
    """No memory is locked, and nothing lies in /dev/shm."""
    if "shm" in limits and os.geteuid() != 0:
        pytest.skip("it needs root to mount a /dev/shm of its own")
    reports, texts = run([limits] * 3)
    assert all(map(is_fine, reports)), (reports, texts)
    assert all("shm" in r["carried"] for r in reports)


@pytest.fixture
def small_cgroup():
    """A cgroup whose processes may have 250 MiB together."""
    parent, file = (MEMORY, "memory.limit_in_bytes") if MEMORY.is_dir() else (UNIFIED, "memory.max")
    folder = parent / f"clv-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        (folder / file).write_text(str(250 << 20))
        for name, value in (("memory.memsw.limit_in_bytes", str(250 << 20)), ("memory.swap.max", "0")):
            if (folder / name).exists():
                (folder / name).write_text(value)
        yield folder
    except OSError as error:
        pytest.skip(f"no cgroup can be limited here: {error}")
    finally:
        folder.rmdir()


def test_out_of_memory(small_cgroup):
    """The kernel kills the rank that goes past the limit; for the others that is a death like any other."""
    limits = [{"arrays": 60}, {"arrays": 60, "cgroup": str(small_cgroup)}, {"arrays": 60}]
    reports, _ = run(limits)
    assert reports[1] is None, reports
    for survivor in (reports[0], reports[2]):
        assert survivor["error"] == "PeerError", survivor
        assert survivor["peer"] == 1
