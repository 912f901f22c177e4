"""The parser of TF_CONFIG. Nothing here starts TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import collectives
import pytest

PATH = Path(collectives.__file__).parent / "tensorflow" / "_tf_config.py"
spec = importlib.util.spec_from_file_location("tf_config_alone", PATH)
assert spec is not None and spec.loader is not None
parser: Any = importlib.util.module_from_spec(spec)
sys.modules["tf_config_alone"] = parser  # dataclasses look there
spec.loader.exec_module(parser)

WORKERS = {"worker": ["a:1", "b:1", "[fd00::1]:2222"]}


def read(config: Any) -> Any:
    return parser.read_tf_config({"TF_CONFIG": config if isinstance(config, str) else json.dumps(config)})


def of(cluster: Any, kind: Any = "worker", index: Any = 0) -> Any:
    return read({"cluster": cluster, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"cluster": {}, "task": {"type": "worker", "index": 0}}'])
def test_alone(text):
    assert read(text) is None
    assert parser.read_tf_config({}) is None


def test_reads_the_environment_by_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 1}}))
    assert parser.read_tf_config().rank == 1


@pytest.mark.parametrize("index", [0, 1, 2])
def test_workers(index):
    config = of(WORKERS, "worker", index)
    assert (config.rank, config.size, config.trains) == (index, 3, True)
    assert config.address == WORKERS["worker"][index]
    assert config.members == [("worker", i, address) for i, address in enumerate(WORKERS["worker"])]


def test_the_chief_is_rank_0():
    cluster = {"worker": ["a:1", "b:1"], "ps": ["p:1"], "chief": ["c:1"], "evaluator": ["e:1"]}
    assert [of(cluster, *task).rank for task in (("chief", 0), ("worker", 0), ("worker", 1))] == [0, 1, 2]
    config = of(cluster, "worker", 1)
    assert (config.size, config.address) == (3, "b:1")
    assert [address for _, _, address in config.members] == ["c:1", "a:1", "b:1"]


@pytest.mark.parametrize("kind", ["ps", "evaluator"])
def test_who_does_not_train_is_alone(kind):
    config = of({**WORKERS, kind: ["x:1"]}, kind)
    assert (config.rank, config.size, config.trains, config.address) == (0, 1, False, "x:1")


def test_an_evaluator_need_not_be_listed():
    config = of(WORKERS, "evaluator", 0)
    assert (config.size, config.trains, config.address) == (1, False, None)


def test_an_index_may_be_written_as_digits():
    assert of(WORKERS, "worker", "2").rank == 2


def test_other_keys_are_left_alone():
    config = {"cluster": WORKERS, "task": {"type": "worker", "index": 0}, "environment": "cloud", "rpc_layer": "grpc"}
    assert read(config).size == 3


@pytest.mark.parametrize(
    ("config", "quoted", "expected"),
    [
        ('{"cluster": {"worker"', "character 21", '{"cluster"'),
        ("[1, 2]", "[1, 2]", "an object"),
        ({"task": {"type": "worker", "index": 0}}, "['task']", "no 'cluster'"),
        ({"cluster": WORKERS}, "no 'task'", '"index": 0'),
        ({"cluster": WORKERS, "task": {"type": "worker"}}, "{'type': 'worker'}", '"index": 0'),
        ({"cluster": WORKERS, "task": 7}, "7", '"index": 0'),
        ({"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}, "['a:1']", "by job"),
        ({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}}, "{'worker': []}", "without an address"),
        ({"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}, "'a:1'", "list"),
        ({"cluster": {"master": ["a:1"]}, "task": {"type": "worker", "index": 0}}, "'master'", "chief, worker"),
    ],
)
def test_malformed(config, quoted, expected):
    with pytest.raises(ValueError, match="TF_CONFIG") as caught:
        read(config)
    assert quoted in str(caught.value) and expected in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "index", "quoted", "expected"),
    [
        ("boss", 0, "'boss'", "chief, worker, ps, evaluator"),
        ("ps", 0, "'ps'", "has none"),
        ("worker", 3, "worker 3", "0 to 2"),
        ("worker", -1, "-1", "at least 0"),
        ("worker", 1.0, "1.0", "integer"),
        ("worker", "one", "'one'", "integer"),
        ("worker", True, "True", "integer"),
        ("worker", None, "None", "integer"),
    ],
)
def test_malformed_task(kind, index, quoted, expected):
    with pytest.raises(ValueError, match="the task of TF_CONFIG") as caught:
        of(WORKERS, kind, index)
    assert quoted in str(caught.value) and expected in str(caught.value)


@pytest.mark.parametrize(
    "address", ["node1", "node1:", ":1", "node1:http", "node1:0", "node1:65536", "fd00::1:2222", 17, None]
)
def test_malformed_address(address):
    with pytest.raises(ValueError, match="the address of worker 1 in the cluster of TF_CONFIG") as caught:
        of({"worker": ["a:1", address]})
    assert repr(address) in str(caught.value) and "host:port" in str(caught.value)


def test_duplicate_address():
    with pytest.raises(ValueError, match="'a:1' is that of chief 0 and of worker 1"):
        of({"chief": ["a:1"], "worker": ["b:1", "a:1"]})


def test_two_chiefs():
    with pytest.raises(ValueError, match="at most one"):
        of({"chief": ["a:1", "b:1"]}, "chief")


def test_of_a_resolver():
    config = parser.from_cluster({"chief": ["a:1"], "worker": ("b:1",)}, "worker", 0)
    assert (config.rank, config.size) == (1, 2)
    with pytest.raises(ValueError, match="the task of cluster_resolver has the type None"):
        parser.from_cluster({"worker": ["b:1"]}, None, None)


def test_needs_no_tensorflow():
    program = f"import sys, runpy; runpy.run_path({str(PATH)!r}); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
