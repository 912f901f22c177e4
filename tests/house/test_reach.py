"""tools/reach.py finds the tests of a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from reach import Graph, Reached


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph()


def found_by(graph: Graph, *changed: str) -> list[str]:
    return [reached.test for reached in graph.reached(changed)]


def reached(graph: Graph, test: str, changed: str) -> Reached:
    return next(found for found in graph.reached([changed]) if found.test == test)


@pytest.mark.parametrize(
    ("changed", "among"),
    [
        ("csrc/algorithms/all_reduce_ring.cc", ["tests/verify/test_verifier.py", "tests/calls/test_conformance.py"]),
        ("csrc/memory/domain.h", ["tests/cpp/slots_test.cc", "tests/calls/test_conformance.py"]),
        ("csrc/transports/tcp/receiver.cc", ["tests/cpp/tcp_link_test.cc", "tests/messages/test_messages.py"]),
        ("csrc/bindings/calls/vector_calls.cc", ["tests/calls/test_bad_input_parts.py"]),
        ("csrc/bindings/tensorflow/kernel.cc", ["tests/tensorflow/test_tensorflow_ops.py"]),
        ("csrc/cuda/plan.cc", ["tests/cuda/test_cuda_kernels.py"]),
        (
            "python/collectives/_startup/wire.py",
            ["tests/startup/test_wire.py", "tests/startup/test_rendezvous.py", "tests/launch/test_launch.py"],
        ),
        ("python/collectives/tensorflow/_tf_config.py", ["tests/tensorflow/test_tf_config.py"]),
        ("tests/support/pool.py", ["tests/failures/test_failures.py", "tests/calls/test_conformance.py"]),
        ("tests/support/fake_device/checker.cc", ["tests/devices/test_device_arrays.py"]),
        ("bench/peers/memcpy.py", ["tests/bench/test_bench_limit.py"]),
        ("examples/digits.py", ["tests/house/test_examples.py"]),
        ("docs/recorder.md", ["tests/house/test_documents.py"]),
        ("README.md", ["tests/house/test_readme.py"]),
        ("tools/make_environment_page.py", ["tests/startup/test_environment.py"]),
    ],
)
def test_a_change_reaches_its_tests(graph: Graph, changed: str, among: list[str]) -> None:
    assert (ROOT / changed).is_file()
    assert not set(among) - set(found_by(graph, changed))


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("docs/recorder.md", "tests/verify/test_verifier.py"),
        ("python/collectives/tensorflow/_tf_config.py", "tests/verify/test_verifier.py"),
        ("csrc/engine/groups/agreement.cc", "tests/cpp/tcp_link_test.cc"),
        ("tests/support/net/hosts.py", "tests/verify/test_verifier.py"),
        ("bench/plot.py", "tests/messages/test_messages.py"),
    ],
)
def test_a_change_leaves_other_tests_alone(graph: Graph, changed: str, test: str) -> None:
    assert (ROOT / changed).is_file()
    assert test not in found_by(graph, changed)


@pytest.mark.parametrize(
    ("changed", "near", "far"),
    [
        (
            "csrc/algorithms/all_reduce_ring.cc",
            "tests/verify/test_verifier.py",
            "tests/tensorflow/test_tensorflow_workers.py",
        ),
        ("csrc/engine/groups/agreement.cc", "tests/cpp/agreement_test.cc", "tests/calls/test_conformance.py"),
        ("csrc/reduce/loop.h", "tests/reduce/test_reducers.py", "tests/messages/test_messages.py"),
        ("python/collectives/_startup/wire.py", "tests/startup/test_wire.py", "tests/calls/test_conformance.py"),
    ],
)
def test_the_closest_come_first(graph: Graph, changed: str, near: str, far: str) -> None:
    found = found_by(graph, changed)
    assert found.index(near) < found.index(far)


def test_the_way_is_told(graph: Graph) -> None:
    way = reached(graph, "tests/cpp/agreement_test.cc", "csrc/engine/groups/agreement.cc").way
    assert way == ("tests/cpp/agreement_test.cc", "csrc/engine/groups/agreement.h", "csrc/engine/groups/agreement.cc")


def test_a_class_in_several_files(graph: Graph) -> None:
    header = graph.steps["csrc/engine/engine.h"]
    files = {f"csrc/engine/{name}.cc" for name in ("engine", "engine_peers")}
    assert files <= set(header)


def test_what_registers_itself(graph: Graph) -> None:
    assert "csrc/algorithms/broadcast_tree.cc" in graph.steps["csrc/schedule/algorithm.h"]
    assert "csrc/transports/tcp/tcp.cc" in graph.steps["csrc/transports/transport.h"]


def test_every_test_is_reached_by_itself_and_every_source_by_some(graph: Graph) -> None:
    for test in graph.tests:
        assert found_by(graph, test)[0] == test
    sources = [
        name for name in graph.files if name.startswith(("csrc/", "python/")) and name.endswith((".cc", ".h", ".py"))
    ]
    assert not [name for name in sources if not found_by(graph, name)]


def test_a_new_file_counts(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    texts = {
        "tests/support/helper.py": "",
        "tests/one/test_a.py": "import helper\n",
        "tests/one/beside.py": "",
        "tests/one/test_b.py": "import beside\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = Graph(tmp_path)
    assert [found.test for found in graph.reached(["tests/support/helper.py"])] == ["tests/one/test_a.py"]
    assert [found.test for found in graph.reached(["tests/one/beside.py"])] == ["tests/one/test_b.py"]


def test_the_command(graph: Graph) -> None:
    command = [sys.executable, "tools/reach.py", "--plain", "csrc/engine/groups/agreement.cc"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == found_by(graph, "csrc/engine/groups/agreement.cc")
