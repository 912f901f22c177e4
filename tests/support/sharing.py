"""How the tests are shared among processes of pytest."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

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


def processes(arguments: Sequence[str]) -> int:
    """How many processes share the tests of a command line; a single file is run by this one."""
    files = {argument.partition("::")[0] for argument in arguments}
    one = len(files) == 1 and all(file.endswith(".py") for file in files)
    return 0 if one else WORKERS_OF_A_CORE * len(os.sched_getaffinity(0))


def put_in_order(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))  # stable: else the order stays
