"""tools/reach.py finds the tests of a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from reach import Graph, Reached  # noqa: E402


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
        ("csrc/algorithms/all_reduce_ring.cc", ["tests/test_verifier.py", "tests/test_conformance.py"]),
        ("csrc/memory/domain.h", ["tests/cpp/slots_test.cc", "tests/test_conformance.py"]),
        ("csrc/transports/tcp/link_receive.cc", ["tests/cpp/tcp_link_test.cc", "tests/test_messages.py"]),
        ("csrc/bindings/calls/vector_calls.cc", ["tests/test_bad_input_parts.py"]),
        ("csrc/bindings/tensorflow/kernel.cc", ["tests/test_tensorflow_ops.py"]),
        ("csrc/cuda/plan.cc", ["tests/test_cuda_kernels.py"]),
        (
            "python/collectives/_startup/wire.py",
            ["tests/test_wire.py", "tests/test_rendezvous.py", "tests/test_launch.py"],
        ),
        ("python/collectives/tensorflow/_tf_config.py", ["tests/test_tf_config.py"]),
        ("tests/pool.py", ["tests/test_failures.py", "tests/test_conformance.py"]),
        ("tests/fake_device/checker.cc", ["tests/test_device_arrays.py"]),
        ("bench/peers/memcpy.py", ["tests/test_bench_limit.py"]),
        ("examples/digits.py", ["tests/test_examples.py"]),
        ("docs/recorder.md", ["tests/test_documents.py"]),
        ("README.md", ["tests/test_readme.py"]),
        ("tools/make_environment_page.py", ["tests/test_environment.py"]),
    ],
)
def test_a_change_reaches_its_tests(graph: Graph, changed: str, among: list[str]) -> None:
    assert (ROOT / changed).is_file()
    assert not set(among) - set(found_by(graph, changed))


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("docs/recorder.md", "tests/test_verifier.py"),
        ("python/collectives/tensorflow/_tf_config.py", "tests/test_verifier.py"),
        ("csrc/engine/groups/agreement.cc", "tests/cpp/tcp_link_test.cc"),
        ("tests/net/hosts.py", "tests/test_verifier.py"),
        ("bench/plot.py", "tests/test_messages.py"),
    ],
)
def test_a_change_leaves_other_tests_alone(graph: Graph, changed: str, test: str) -> None:
    assert (ROOT / changed).is_file()
    assert test not in found_by(graph, changed)


@pytest.mark.parametrize(
    ("changed", "near", "far"),
    [
        ("csrc/algorithms/all_reduce_ring.cc", "tests/test_verifier.py", "tests/test_tensorflow_workers.py"),
        ("csrc/engine/groups/agreement.cc", "tests/cpp/agreement_test.cc", "tests/test_conformance.py"),
        ("csrc/reduce/loop.h", "tests/test_reducers.py", "tests/test_messages.py"),
        ("python/collectives/_startup/wire.py", "tests/test_wire.py", "tests/test_conformance.py"),
    ],
)
def test_the_closest_come_first(graph: Graph, changed: str, near: str, far: str) -> None:
    found = found_by(graph, changed)
    assert found.index(near) < found.index(far)


def test_the_way_is_told(graph: Graph) -> None:
    way = reached(graph, "tests/cpp/agreement_test.cc", "csrc/engine/groups/agreement.cc").way
    assert way == ("tests/cpp/agreement_test.cc", "csrc/engine/groups/agreement.h", "csrc/engine/groups/agreement.cc")


def test_a_class_in_several_files(graph: Graph) -> None:
    header = graph.steps["csrc/engine/communicator.h"]
    files = {f"csrc/engine/failure/{name}.cc" for name in ("failure", "reports", "watch")}
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
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("")
    (tmp_path / "tests" / "test_a.py").write_text("import helper\n")
    (tmp_path / "tests" / "test_b.py").write_text("import os\n")
    assert [found.test for found in Graph(tmp_path).reached(["tests/helper.py"])] == ["tests/test_a.py"]


def test_the_command(graph: Graph) -> None:
    command = [sys.executable, "tools/reach.py", "--plain", "csrc/engine/groups/agreement.cc"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == found_by(graph, "csrc/engine/groups/agreement.cc")
