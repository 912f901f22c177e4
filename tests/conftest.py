"""The pools of ranks, and the check that a test session leaves nothing behind."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import built
import namespaces
import net.hosts
import nursery
import tiers
from bench_runs import BENCH
from net.ranks import HostGroup, host_group
from pool import Pools, make_group

# Inherited by every process that a test starts, and by those that they start: finds those that outlived it.
MARK = "TESTS_OF_COLLECTIVES"
os.environ[MARK] = uuid.uuid4().hex
# Likewise: one that crashes says where its Python code was.
os.environ["PYTHONFAULTHANDLER"] = "1"

# Most tests keep all cores busy, some wait for a deadline or for a process that ends. With three of them, ranks that
# look for each other's flags take longer than what is gained.
WORKERS_OF_A_CORE = 2
# The files that take longest begin first, so that no worker is left with one of them when the others are done.
LONGEST = (
    "test_cpp",
    "test_smddp",
    "test_horovod_keras",
    "test_horovod",
    "test_tensorflow_programs",
    "test_tensorflow_failures",
    "test_conformance",
    "test_tensorflow_examples",
    "test_model",
    "test_bench_tensorflow",
    "test_chaos",
    "test_bench",
    "test_programs",
    "test_verifier",
    "test_conformance_parts",
    "test_tensorflow_workers",
)

pytest_addoption = tiers.add_options


def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores Ctrl-C, and so would the ranks of the tests of it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    built.begin()
    tiers.configure(config)


def pytest_unconfigure() -> None:
    built.end()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes share the tests; a single file is run by this one."""
    files = {argument.partition("::")[0] for argument in config.args}
    one = len(files) == 1 and all(file.endswith(".py") for file in files)
    return 0 if one else WORKERS_OF_A_CORE * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.deselect(config, items)
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))  # stable: else the order stays


TOLERANCE = 4  # descriptors: pytest and its plugins open some of their own on the way, none of the kinds in OURS
OURS = ("eventfd", "memfd:", "socket:")
GRACE = 10.0  # seconds for processes that were told to end


def descendants() -> list[str]:
    """Processes that carry the mark of this session, besides this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    # Python's own helper, which lives as long as this process.
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in (os.getpid(), tracker):
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"process {entry.name}: {command[:200]}")
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


def mapped_segments() -> list[str]:
    """Segments that this process still has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:collectives" in line]


def files() -> set[str]:
    """Files with our name where temporary things lie."""
    return {
        str(path)
        for folder in ("/dev/shm", "/tmp", "/var/tmp")
        if os.path.isdir(folder)
        for path in Path(folder).glob("*collectives*")
    }


def descriptors() -> list[str]:
    found = []
    for entry in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found.append(f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue  # the listing itself
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """Made first, hence torn down last: after the pools."""
    files_before, descriptors_before, networks_before = files(), descriptors(), net.hosts.outside()
    yield
    nursery.close_all()
    gc.collect()
    end = time.monotonic() + GRACE
    while (descendants() or files() - files_before) and time.monotonic() < end:
        time.sleep(0.05)  # a poll: processes that are no children of this one cannot be waited for
    assert not descendants(), "processes are left"
    assert not mapped_segments(), "segments are left"
    new = files() - files_before
    assert not new, f"files are left: {new}"
    # What tests put into a namespace (devices, queues, rules) goes with it; outside they must have put nothing.
    assert not net.hosts.left(os.getpid()), "network namespaces are left"
    outside = net.hosts.outside() - networks_before
    assert not outside, f"devices or rules are left: {outside}"
    # JAX and TensorFlow open a pipe each when they start, and keep it; this library makes none. The page for the stacks
    # of this process is kept by it until it ends (csrc/engine/failure/stacks.h).
    kept = (" -> pipe:", "memfd:rank-stack ")
    left = [d for d in descriptors() if d not in descriptors_before and not any(kind in d for kind in kept)]
    ours = [d for d in left if any(kind in d for kind in OURS)]
    alive = [repr(o) for o in gc.get_objects() if type(o).__name__ == "Communicator"]
    assert not ours, f"descriptors of this library are left: {ours}; communicators that something refers to: {alive}"
    assert len(left) <= TOLERANCE, f"descriptors are left: {left}"


@pytest.fixture(scope="session")
def pools(nothing_left: None) -> Iterator[Pools]:
    """Groups of ranks that serve many tests."""
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def groups() -> Iterator[object]:
    """Makes groups for one test, which may damage them."""
    made = []

    def make(size: int, transport: str, **settings: object) -> object:
        made.append(make_group(size, transport, **settings))
        return made[-1]

    yield make
    for group in made:
        group.broken = True  # whatever has become of them
        group.close()


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """See `namespaces.two_hosts`."""
    with namespaces.two_hosts() as names:
        yield names


@pytest.fixture(scope="module", params=[[0, 0, 1, 1], [0, 1, 2]], ids=["two-hosts-of-two", "three-hosts"])
def ranks_on_hosts(faulty_hosts: net.hosts.Hosts, request: pytest.FixtureRequest) -> Iterator[HostGroup]:
    """Two ranks on each of a module's `faulty_hosts`, with shared memory and TCP, or one, with TCP only."""
    with host_group(faulty_hosts, request.param) as made:
        yield made


@pytest.fixture
def host_ranks(ranks_on_hosts: HostGroup) -> HostGroup:
    """The same for all tests of a module, but for what a test before has broken."""
    if ranks_on_hosts.broken:
        ranks_on_hosts.connect()
    return ranks_on_hosts


@pytest.fixture
def bench_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Loads a module of bench/, whose names are too common to be left around."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]
