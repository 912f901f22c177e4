"""How NCCL is found, what is refused, and the real library where it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nccl_fake
import pytest

ABI = nccl_fake.CSRC / "nccl" / "abi.h"
STATUS = "import json; from collectives._devices import nccl as _nccl; print(json.dumps(_nccl.status()))"
# As if no package of NVIDIA's were installed.
WITHOUT = "from collectives._devices import nccl as _nccl; _nccl.candidates = list; "
# Loads the library as other packages do.
LOADED = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); "


def run(program: str, *arguments: object, path: Path | None = None, **variables: str) -> str:
    """What a fresh process prints. path: in front of its module search path."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "NCCL_"))}
    if path is not None:
        program = f"import sys; sys.path.insert(0, {str(path)!r}); " + program
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(*arguments: object, program: str = STATUS, path: Path | None = None, **variables: str) -> Any:
    return json.loads(run(program, *arguments, path=path, **variables).splitlines()[-1])


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nccl_fake.build(tmp_path_factory.mktemp("nccl"))


@pytest.fixture
def places(fake: Path, tmp_path: Path) -> dict[str, Path]:
    """Four copies: one that a variable names, one that is loaded, one of a Python package, one of the system."""
    paths = {}
    for name in ("named", "loaded", "package/nvidia/nccl/lib", "system"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        paths[name.split("/")[0]] = Path(shutil.copy(fake, folder / fake.name))
    return paths


def test_the_order_of_places(places: dict[str, Path]) -> None:
    """Each place counts where those before it have nothing."""
    package = places["package"].parents[3]
    named = {"COLLECTIVES_NCCL_LIB": str(places["named"])}
    system = {"LD_LIBRARY_PATH": str(places["system"].parent)}
    found = status(places["loaded"], program=LOADED + STATUS, path=package, **named, **system)
    assert (found["path"], found["where"]) == (str(places["named"]), "COLLECTIVES_NCCL_LIB")
    found = status(places["loaded"], program=LOADED + STATUS, path=package, **system)
    assert (found["path"], found["where"]) == (str(places["loaded"]), "loaded before by this process")
    found = status(path=package, **system)
    assert (found["path"], found["where"]) == (str(places["package"]), "Python package")
    found = status(program=WITHOUT + STATUS, **system)
    assert (found["path"], found["where"]) == (str(places["system"]), "system")
    assert found["usable"] and found["why"] == ""


def test_another_version_of_the_package_is_shown(places: dict[str, Path]) -> None:
    found = status(path=places["package"].parents[3])
    assert (found["version"], found["code"]) == ("2.28.9", 22809)


def test_the_library_that_was_named_is_the_only_one(places: dict[str, Path]) -> None:
    found = status(COLLECTIVES_NCCL_LIB="/no/such/file", LD_LIBRARY_PATH=str(places["system"].parent))
    assert not found["usable"]
    assert "COLLECTIVES_NCCL_LIB" in found["why"] and "/no/such/file" in found["why"]


def test_nothing_is_there() -> None:
    found = status(program=WITHOUT + STATUS)
    assert not found["usable"] and found["version"] == ""
    assert "libnccl.so.2" in found["why"] and "collectives-comm[nccl]" in found["why"]


@pytest.mark.parametrize(
    ("defines", "words"),
    [
        (["FAKE_WITHOUT_RED_OP_DESTROY"], "has no symbol ncclRedOpDestroy"),
        (["FAKE_NCCL_VERSION=21304"], "is NCCL 2.13.4; 2.14.0 or later is needed"),
        (["FAKE_NCCL_VERSION=2804"], "is NCCL 2.8.4; 2.14.0 or later is needed"),
    ],
    ids=["missing symbol", "old", "very old"],
)
def test_what_is_refused(tmp_path: Path, defines: list[str], words: str) -> None:
    path = nccl_fake.build(tmp_path, *defines)
    found = status(COLLECTIVES_NCCL_LIB=str(path))
    assert not found["usable"]
    assert words in found["why"] and str(path) in found["why"]


def test_words_of_the_last_error_may_be_missing(tmp_path: Path) -> None:
    path = nccl_fake.build(tmp_path, "FAKE_WITHOUT_LAST_ERROR")
    program = """
import ctypes, sys
from collectives import _core, BackendError
fake = ctypes.CDLL(sys.argv[1])
fake.fake_fail(b"ncclGetUniqueId", 0, 2, b"these words")
try:
    _core._nccl_unique_id([])
except BackendError as error:
    print(error)
"""
    text = run(program, path, COLLECTIVES_NCCL_LIB=str(path))
    assert "NCCL error 2, unhandled system error" in text and "these words" not in text
    assert "NCCL_DEBUG=INFO" in text and "NCCL_SOCKET_IFNAME" in text


# --- the real library ------------------------------------------------------------------------------------------------


def real() -> Path:
    """The library of the package nvidia-nccl-cu13."""
    paths = [Path(entry) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for entry in sys.path]
    return next(path for path in paths if path.is_file())


def test_the_real_library(tmp_path: Path) -> None:
    """Without a driver it has a version and ids, and fails in good order."""
    path = real()
    fake = nccl_fake.build(tmp_path)
    program = """
import json
from collectives import _core, errors
from collectives._devices import nccl as _nccl
found = _nccl.status()
ids = [_core._nccl_unique_id([]) for _ in range(2)]
try:
    _core._nccl_connect_devices([], [0], 20.0)
    words = ""
except errors.BackendError as error:
    words = str(error)
print(json.dumps([found, [len(i) for i in ids], ids[0] != ids[1], words]))
"""
    # The table is the fake one's: there a device exists, for which NCCL finds no driver.
    text = run(program, COLLECTIVES_NCCL_LIB=str(path), COLLECTIVES_CUDA_LIB=str(fake))
    found, lengths, differ, words = json.loads(text.splitlines()[-1])
    assert found["usable"], found
    assert found["path"] == str(path) and found["code"] >= 22700
    assert lengths == [128, 128] and differ
    if not Path("/dev/nvidiactl").exists():
        assert "unhandled cuda error" in words and "nvidia-smi" in words, words


def test_our_declarations_are_those_of_the_header() -> None:
    header = (real().parent.parent / "include" / "nccl.h").read_text()
    ours = ABI.read_text()
    numbers = {name.lower(): int(value) for name, value in re.findall(r"\bnccl(\w+)\s*=\s*(\d+)", header)}
    for name, value in re.findall(r"\bkNccl(\w+) = (\d+)", ours):
        if not name.endswith("Version") and name != "ScalarHostImmediate":
            assert numbers[name.lower()] == int(value), name
    assert numbers["scalarhostimmediate"] == 1
    assert "#define NCCL_UNIQUE_ID_BYTES 128" in header
    fields = re.search(r"typedef struct ncclConfig_v\w+ \{(.*?)\} ncclConfig_t;", header, re.DOTALL)
    assert fields is not None
    names = re.findall(r"(size_t|unsigned int|int) (\w+);", fields[1])
    assert names[:4] == [
        ("size_t", "size"),
        ("unsigned int", "magic"),
        ("unsigned int", "version"),
        ("int", "blocking"),
    ]
    assert "0xcafebeef" in header
    for function in re.findall(r'get\("(nccl\w+)"', (ABI.parent / "library.cc").read_text()):
        assert re.search(rf"\b{function}\(", header), function
