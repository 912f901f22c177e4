"""Short forms of chaos.py: dozens of kills, some stops, a soak of seconds. docs/reliability.md has the long ones."""

from __future__ import annotations

from collections.abc import Iterator

import chaos_jobs
import chaos_ranks
import chaos_soak
import pytest
import tiers
from chaos_trials import PROMISED, Result, attempt

SEED = 6


@pytest.fixture(scope="module")
def jobs() -> Iterator[chaos_jobs.Jobs]:
    with chaos_jobs.Jobs() as made:
        yield made


def run(jobs: chaos_jobs.Jobs, fault: str, transport: str, trials: int) -> list[Result]:
    if transport not in chaos_jobs.usable_transports():
        pytest.skip("several hosts need root and the command `ip`")
    results = [attempt(jobs, fault, transport, SEED, number) for number in range(trials)]
    failed = [result.text() for result in results if result.failures]
    assert not failed, "\n".join(failed)
    return results


@pytest.mark.parametrize("transport", chaos_jobs.TRANSPORTS)
def test_kills(jobs: chaos_jobs.Jobs, transport: str) -> None:
    """48 in all, a hundred in the full tier, each with every survivor in time."""
    results = run(jobs, "kill", transport, tiers.few(12, full=25))
    late = sorted(t for result in results for t in result.late)
    assert len(late) == sum(result.size - 1 for result in results)
    # Single ranks may wait for a core; where most are late it is not the machine.
    assert late[len(late) // 2] < PROMISED, late


@pytest.mark.parametrize("transport", chaos_jobs.TRANSPORTS)
def test_stops(jobs: chaos_jobs.Jobs, transport: str) -> None:
    run(jobs, "stop", transport, 2)


@pytest.mark.parametrize("transport", ["shm", "tcp", "mixed"])
def test_stopped_for_a_while(jobs: chaos_jobs.Jobs, transport: str) -> None:
    run(jobs, "resume", transport, tiers.few(3, full=5))


@pytest.mark.parametrize("transport", ["shm", "mixed"])
def test_soak(jobs: chaos_jobs.Jobs, transport: str) -> None:
    if transport not in chaos_jobs.usable_transports():
        pytest.skip("several hosts need root and the command `ip`")
    faults, line = chaos_soak.soak(jobs, transport, tiers.few(5, full=10), SEED, growth=chaos_soak.SHORT_GROWTH)
    assert not faults, (faults, line)


def test_a_wrong_sum_is_found() -> None:
    """The checks of the ranks can fail: a communicator whose sums are wrong by one in one place."""
    import collectives

    with collectives.init() as comm:
        mix = chaos_ranks.Mix(comm, SEED)
        mix.expect("right", mix.values(1000, "float32", 3), mix.values(1000, "float32", 3))
        assert mix.report.wrong == []
        damaged = mix.values(1000, "float32", 3)
        damaged[777] += 1
        mix.expect("damaged", damaged, mix.values(1000, "float32", 3))
    assert len(mix.report.wrong) == 1
    assert "777" in mix.report.wrong[0]
