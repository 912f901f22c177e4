"""The pools of ranks, and the check that a test session leaves nothing behind."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import built
import leftovers
import namespaces
import net.hosts
import pytest
import sharing
import tiers
from net.ranks import HostGroup, host_group
from paths import BENCH, TESTS
from pool import Pools, make_group

leftovers.begin()

# pytest puts the folder of this file into sys.path, where rooms such as tensorflow/ would pass for libraries that are
# not installed.
sys.path[:] = [entry for entry in sys.path if entry != str(TESTS)]

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
    return sharing.processes(config.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.deselect(config, items)
    sharing.put_in_order(items)


@pytest.fixture(scope="session", autouse=True)
def nothing_left() -> Iterator[None]:
    """Made first, hence torn down last: after the pools."""
    with leftovers.refused():
        yield


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
