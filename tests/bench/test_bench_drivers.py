"""Drivers of the bench's peers: that they are compiled, and what the bench says when they cannot be."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
from pathlib import Path

import pytest
from test_bench import QUICK, bench


@pytest.fixture
def install(bench_module):
    return bench_module("peers.install")


def _answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_a_driver_is_compiled_once(install, tmp_path):
    source = tmp_path / "driver.cc"
    source.write_text('extern "C" int answer() { return ANSWER; }\n')
    first = install.driver(tmp_path, str(source), ["-DANSWER=42"], [])
    assert _answer(first) == 42
    stamp = first.stat().st_mtime_ns
    assert install.driver(tmp_path, str(source), ["-DANSWER=42"], []) == first
    assert first.stat().st_mtime_ns == stamp
    assert _answer(install.driver(tmp_path, str(source), ["-DANSWER=43"], [])) == 43
    source.write_text('extern "C" int answer() { return ANSWER + 1; }\n')
    assert _answer(install.driver(tmp_path, str(source), ["-DANSWER=42"], [])) == 43
    assert len(list(first.parent.iterdir())) == 3  # and nothing that is half done


def test_a_library_that_changes_is_linked_again(install, tmp_path):
    source, needed = tmp_path / "driver.cc", tmp_path / "needed.cc"
    source.write_text('extern "C" int needed();\nextern "C" int answer() { return needed(); }\n')
    needed.write_text('extern "C" int needed() { return 42; }\n')
    library = install.driver(tmp_path, str(needed), [], [])
    first = install.driver(tmp_path, str(source), [], [library])
    assert _answer(first) == 42
    os.utime(library, (1, 1))
    assert install.driver(tmp_path, str(source), [], [library]) != first


def test_no_compiler_and_a_source_that_does_not_compile(install, bench_module, monkeypatch, tmp_path):
    error = bench_module("peers").PeerMissingError
    with pytest.raises(error, match=r"(?s)gloo\.cc could not be compiled.*error: .*from_blob\.h"):
        install.driver(tmp_path, "gloo.cc", ["-std=c++20"], [])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(error, match="no-such-compiler; install one, or name it by CXX"):
        install.driver(tmp_path, "gloo.cc", ["-std=c++20"], [])
    assert not list((tmp_path / "cache").iterdir())


def test_the_openmpi_of_debian_is_asked_for(bench_module, monkeypatch, tmp_path):
    peer, missing = bench_module("peers.openmpi_debian"), bench_module("peers").PeerMissingError
    monkeypatch.setattr(peer, "_MPIRUN", tmp_path / "mpirun.openmpi")
    with pytest.raises(missing, match="apt-get install openmpi-bin"):
        peer.locate(None)
    (tmp_path / "mpirun.openmpi").touch()
    with pytest.raises(missing, match=r"python bench/peers/openmpi_debian\.py --install"):
        peer.locate(tmp_path)


def test_what_oneccl_does_not_do(bench_module):
    peer, config_type = bench_module("peers.oneccl"), bench_module("cases").Config
    values = dict.fromkeys((field.name for field in dataclasses.fields(config_type)), None)
    config = config_type(**values | {"collective": "all_reduce", "op": "sum", "dtype": "bfloat16"})
    assert peer.unsupported(config) == ""
    assert "avg" in peer.unsupported(dataclasses.replace(config, op="avg"))
    assert "bool" in peer.unsupported(dataclasses.replace(config, dtype="bool"))
    assert "reduce" in peer.unsupported(dataclasses.replace(config, collective="reduce"))
    assert peer.unsupported(dataclasses.replace(config, collective="broadcast", op="avg")) == ""


@pytest.mark.parametrize("name", ["gloo", "oneccl", "openmpi_debian"])
@pytest.mark.parametrize(
    "arguments", [["--op", "max"], ["--collective", "broadcast"], ["--dtype", "int32"], ["-n", 3]], ids=str
)
def test_a_peer_is_right_at_c_level(bench_module, tmp_path, name, arguments):
    try:
        bench_module("peers").load(name).locate(None)
    except bench_module("peers").PeerMissingError as error:
        pytest.skip(str(error))
    rows_file = tmp_path / "out.json"
    sizes = ["-b", 8, "-e", "1M", "-f", 1 << 17]
    run = bench("--vs", name, "--level", "c", "--json", rows_file, *sizes, *arguments, *QUICK)
    assert run.returncode == 0, run.stderr + run.stdout
    rows = json.loads(rows_file.read_text())["rows"]
    assert {(row["bytes"], row["level"], row["wrong"]) for row in rows if row["peer"]} == {
        (8, "c", 0),
        (1 << 20, "c", 0),
    }
