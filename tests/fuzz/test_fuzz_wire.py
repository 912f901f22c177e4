"""The corpus of the fuzzer of the Python wire, and random changes of it, without the fuzzer."""

import logging
import random

import pytest
import wire_targets
from paths import TESTS

CORPUS = sorted((TESTS / "fuzz" / "corpus_wire").iterdir())


@pytest.fixture(autouse=True)
def quiet():
    """Each input would log that a stranger was refused."""
    logger = logging.getLogger("collectives")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def test_there_is_a_corpus_for_every_target():
    firsts = {path.read_bytes()[0] % len(wire_targets.TARGETS) for path in CORPUS if path.stat().st_size}
    assert firsts == set(range(len(wire_targets.TARGETS)))


def test_the_corpus_and_the_seeds():
    for path in CORPUS:
        try:
            wire_targets.run(path.read_bytes())
        except BaseException as error:
            raise AssertionError(f"corpus_wire/{path.name}") from error
    for seed in wire_targets.seeds():
        wire_targets.run(seed)


def test_the_seeds_reach_what_they_are_for(monkeypatch):
    """Two ranks are let in and answered; a wrong proof lets none in."""
    members = []
    monkeypatch.setattr(
        wire_targets.rendezvous._Hub,
        "close",
        lambda hub, close=wire_targets.rendezvous._Hub.close: (
            members.append((sorted(hub._members), [len(inbox) for inbox in hub._inbox.values()])),
            close(hub),
        ),
    )
    for seed in wire_targets.seeds()[-5:]:
        wire_targets.run(seed)
    assert members[0] == ([1, 2], [1, 1])
    assert members[-1] == ([], [0, 0])


def test_random_changes_of_the_corpus():
    """3,000 inputs with a fixed seed; no descriptor is left."""
    generator = random.Random(5)
    inputs = [*wire_targets.seeds(), *(path.read_bytes() for path in CORPUS)]
    before = wire_targets.descriptors()
    for _ in range(3000):
        data = bytearray(generator.choice(inputs))
        for _ in range(generator.randrange(1, 6)):
            place = generator.randrange(len(data) + 1)
            what = generator.randrange(4)
            if what == 0 and place < len(data):
                data[place] = generator.randrange(256)
            elif what == 1:
                data[place:place] = generator.randbytes(generator.randrange(1, 9))
            elif what == 2:
                del data[place : place + generator.randrange(1, 9)]
            else:
                other = generator.choice(inputs)
                data[place:] = other[generator.randrange(len(other) + 1) :]
        wire_targets.run(bytes(data))
    assert wire_targets.descriptors() <= before
