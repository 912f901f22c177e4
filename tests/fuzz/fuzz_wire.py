"""Fuzzes the Python wire and the rendezvous with atheris (`pip install atheris`), which is libFuzzer for Python.

python tests/fuzz/fuzz_wire.py -runs=10000 -seed=1 /tmp/new tests/fuzz/corpus_wire        the short run of CI
python tests/fuzz/fuzz_wire.py -max_total_time=3600 /tmp/new tests/fuzz/corpus_wire       a long one
python tests/fuzz/fuzz_wire.py -merge=1 tests/fuzz/corpus_wire /tmp/new                   keeps what is new of it
python tests/fuzz/fuzz_wire.py FILE                                                       one input again

The first folder gets the inputs that are new (make it before); options are those of libFuzzer. A finding is a crash
with a traceback, and its input is left in a file crash-*. `wire_targets.py` says what is fuzzed and what must hold.
"""

from __future__ import annotations

import logging
import sys

import atheris

with atheris.instrument_imports(include=["collectives", "wire_targets", "json"]):
    import wire_targets

CHECK_EVERY = 1000  # inputs, for descriptors that are left
_count = 0
_before = -1


def one(data: bytes) -> None:
    """One input, and now and then a look at what is left of the others."""
    global _count, _before
    wire_targets.run(data)
    _count += 1
    if _count % CHECK_EVERY == 0:
        if _before < 0:
            _before = wire_targets.descriptors()
        assert wire_targets.descriptors() <= _before, "descriptors are left"


if __name__ == "__main__":
    logging.getLogger("collectives").setLevel(logging.CRITICAL)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
