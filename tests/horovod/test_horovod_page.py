"""What docs/horovod.md says of each name of Horovod and SMDDP is so."""

from __future__ import annotations

import re
from typing import Any

import collectives.tensorflow as ct
import numpy as np
import pytest
import tensorflow as tf
from collectives.tensorflow import _worker_slices
from collectives.tensorflow._training import world
from collectives.tensorflow._training.names import ABSENT
from paths import ROOT

PAGE = ROOT / "docs" / "horovod.md"
MODULES = {
    "horovod.tensorflow": "",
    "horovod.tensorflow.keras": "keras",
    "horovod.tensorflow.keras.callbacks": "keras.callbacks",
    "smdistributed.dataparallel.tensorflow": "tensorflow",
}
STRATEGIES = {
    *("HierarchicalCopyAllReduce", "MultiWorkerMirroredStrategy", "NcclAllReduce", "ReductionToOneDevice"),
    *("RingAllReduce", "plug"),
}


def rows() -> list[tuple[str, str, str]]:
    """(module, name, what the table says: yes, differs or no)."""
    found = []
    for heading, text in re.findall(r"^## Names of (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S):
        for names, here in re.findall(r"^\| (`.*?) \| (\w+) \| .*\|$", text, re.M):
            found += [(heading, name, here) for name in re.findall(r"`(\w+)`", names)]
    return found


def module_of(heading: str) -> Any:
    module: Any = ct
    for part in filter(None, MODULES[heading].split(".")):
        module = getattr(module, part)
    return module


def test_every_name_is_as_the_page_says() -> None:
    assert {heading for heading, _, _ in rows()} == set(MODULES)
    assert len(rows()) == len(set(rows())) > 130
    for heading, name, here in rows():
        assert here in ("yes", "differs", "no"), (heading, name, here)
        if here != "no":
            assert getattr(module_of(heading), name) is not None
            continue
        with pytest.raises(NotImplementedError, match=r"(?s).*(?:[Uu]se|started|not there)") as caught:
            getattr(module_of(heading), name)
        assert name in str(caught.value) or "elastic" in str(caught.value)


def test_the_page_has_every_name() -> None:
    of = {heading: {name for found, name, _ in rows() if found == heading} for heading in MODULES}
    assert set(ct.__all__) - STRATEGIES <= of["horovod.tensorflow"] | of["smdistributed.dataparallel.tensorflow"]
    assert set(ABSENT) - {"process_set"} <= of["horovod.tensorflow"]
    assert set(ct.keras.__all__) - {"ReduceOp"} <= of["horovod.tensorflow.keras"]
    assert set(ct.keras.callbacks.__all__) <= of["horovod.tensorflow.keras.callbacks"]


def test_absent_names_are_imported_with_the_same_error() -> None:
    with pytest.raises(NotImplementedError, match="equally many batches"):
        from collectives.tensorflow import join  # noqa: F401
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        _ = ct.jion


def test_what_one_process_can_show_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"call init\(\) first"):
        ct.rank()
    ct.init()
    try:
        ct.init()
        assert (ct.rank(), ct.size(), ct.nccl_built(), ct.mpi_built()) == (0, 1, 0, False)
        assert ct.broadcast(tf.ones([2]), np.int64(0)).numpy().tolist() == [1.0, 1.0]
        for root in (1, -1, True, 0.0, None):
            with pytest.raises(ValueError, match="there are the ranks 0 to 0"):
                ct.broadcast_variables([tf.Variable(1.0)], root)
        assert ct.allreduce(tf.ones([2]), 0, 1, ct.Compression.fp16, ct.ReduceOp.SUM).dtype == tf.float32
        with pytest.raises(TypeError, match="'mask'"):
            ct.allreduce(tf.constant([True]), name="mask")
        with pytest.raises(NotImplementedError, match="new_group"):
            ct.allreduce(tf.ones([2]), process_set=[0])
        monkeypatch.setattr(_worker_slices, "MEMORY_CAP", 7)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"more than 7 bytes.*sparse_as_dense=True"):
            ct.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2])))
    finally:
        ct.shutdown()
        world._groups.clear()  # of the ended world, which functions that were traced in it would need again


@pytest.mark.parametrize("name", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_other_launchers_are_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.raises(ValueError, match=f"{name} is 2: .* COLLECTIVES_RENDEZVOUS"):
        ct.init()
    assert not ct.is_initialized()
