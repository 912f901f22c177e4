"""libcollectives_cuda.so as it is installed, and the switch that decides whether it is built. No GPU is needed."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectives import _core
from cuda_on_host import ROOT, nvcc

LIBRARY = Path(_core.__file__).with_name("libcollectives_cuda.so")
ARCHITECTURES = {75, 80, 90, 100, 120}
WITH_PTX = {100, 120}
FATBIN = 0xBA55ED50
PTX, CODE = 1, 2  # kinds of what a fat binary holds
NO_DRIVER, NO_DEVICE = 35, 100  # cudaErrorInsufficientDriver, cudaErrorNoDevice

needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="there is no nvcc, so libcollectives_cuda.so is not built")


def run(*command: str, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@needs_nvcc
def test_it_is_built_where_nvcc_is() -> None:
    assert LIBRARY.is_file()


@needs_nvcc
def test_it_needs_no_library_but_those_of_the_system() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", str(LIBRARY)))
    assert needed
    system = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0"}
    assert {name for name in needed if not name.startswith("ld-linux")} <= system


@needs_nvcc
def test_it_has_one_symbol() -> None:
    symbols = run("nm", "-D", "--defined-only", str(LIBRARY)).split("\n")[:-1]
    assert [line.split()[1:] for line in symbols] == [["T", "collectives_device_api"]]


def contents(data: bytes) -> Iterator[tuple[int, int]]:
    """(kind, architecture) of all that the fat binaries in a section hold."""
    at = 0
    while (at := data.find(struct.pack("<I", FATBIN), at)) >= 0:
        header, size = struct.unpack_from("<6xHQ", data, at)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, length, payload, architecture = struct.unpack_from("<H2xIQ12xI", data, entry)
            yield kind, architecture
            entry += length + payload
        at = end


@needs_nvcc
@pytest.mark.skipif("CUDAARCHS" in os.environ, reason="CUDAARCHS says what is built")
def test_there_is_code_for_every_architecture(tmp_path: Path) -> None:
    section = tmp_path / "fatbin"
    run("objcopy", "-O", "binary", "--only-section=.nv_fatbin", str(LIBRARY), str(section))
    found = list(contents(section.read_bytes()))
    families = len(list((ROOT / "csrc" / "cuda").glob("*.cu")))
    for architecture in ARCHITECTURES:
        assert found.count((CODE, architecture)) >= families, architecture
    assert {architecture for kind, architecture in found if kind == CODE} == ARCHITECTURES
    assert {architecture for kind, architecture in found if kind == PTX} == WITH_PTX


PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.collectives_device_api.restype = ctypes.POINTER(ctypes.c_void_p)
assert not library.collectives_device_api(0), "a table of a version that does not exist"
table = library.collectives_device_api(1)
words = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)
count = ctypes.c_int(7)
code = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(table[3])(ctypes.byref(count))
print(code, count.value, words(table[1])(code).decode(), words(table[2])(code).decode(), sep="|")
"""


def probe(**environment: str) -> list[str]:
    """Code, number of devices, name and text of the code, as a process of its own is told."""
    return run(sys.executable, "-c", PROBE, str(LIBRARY), env={**os.environ, **environment}).strip().split("|")


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@needs_nvcc
def test_a_machine_without_a_driver_has_no_devices() -> None:
    code, count, name, text = probe()
    if has_driver():
        assert int(count) >= 0 if code == "0" else count == "0"
    else:
        assert (int(code), int(count)) == (NO_DRIVER, 0)
        assert name == "cudaErrorInsufficientDriver"
        assert "driver" in text


# The runtime asks a driver for its functions by name, and calls none but these before cuInit has succeeded.
DRIVER = f"""
#include <string.h>
int cuInit(unsigned flags) {{ (void)flags; return {NO_DEVICE}; }}
int cuDriverGetVersion(int* version) {{ *version = 13000; return 0; }}
static int other(void) {{ return {NO_DEVICE}; }}
int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags, int* found) {{
  (void)version; (void)flags;
  if (strcmp(name, "cuInit") == 0) *function = (void*)cuInit;
  else if (strcmp(name, "cuDriverGetVersion") == 0) *function = (void*)cuDriverGetVersion;
  else if (strcmp(name, "cuGetProcAddress") == 0) *function = (void*)cuGetProcAddress_v2;
  else *function = (void*)other;
  if (found) *found = 0;
  return 0;
}}
"""


@needs_nvcc
def test_a_driver_without_devices(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    run(os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(library))
    code, count, name, _ = probe(LD_LIBRARY_PATH=str(tmp_path))
    assert (int(code), int(count), name) == (NO_DEVICE, 0, "cudaErrorNoDevice")


@needs_nvcc
def test_kernels_that_need_local_memory_are_not_built(tmp_path: Path) -> None:
    """Where warnings are errors, as in .ci/run: the flags of the library see such a kernel."""
    text = (ROOT / "csrc" / "cuda" / "CMakeLists.txt").read_text()
    flags = [flag for found in re.findall(r"(?:set\(|APPEND )CUDA_FLAGS (.*)\)", text) for flag in found.split()]
    good = "__global__ void k(int* p, int n) { p[0] += n; }\n"
    bad = "__global__ void k(int* p, int n) { int a[64] = {}; while (n--) a[p[n] & 63] += n; *p = a[*p & 63]; }"
    for source, works in ((good, True), (bad, False)):
        path = tmp_path / "kernel.cu"
        path.write_text(source)
        command = [str(nvcc()), "-arch=sm_90", *flags, "-c", str(path), "-o", str(tmp_path / "kernel.o")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
        assert (done.returncode == 0) == works, done.stderr
        assert works or "local memory" in done.stderr.lower()


@pytest.fixture(scope="module")
def path_without_nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What PATH says, with links instead of the folders that hold nvcc."""
    result = []
    for index, folder in enumerate(os.environ["PATH"].split(os.pathsep)):
        kept = folder
        if (Path(folder) / "nvcc").exists():
            kept = str(tmp_path_factory.mktemp(f"tools{index}"))
            for tool in Path(folder).iterdir():
                if tool.name != "nvcc":
                    (Path(kept) / tool.name).symlink_to(tool)
        result.append(kept)
    return os.pathsep.join(result)


def configure(folder: Path, path: str, switch: str) -> subprocess.CompletedProcess[str]:
    """Configures the library alone: the engine is the one that is installed."""
    ninja = shutil.which("ninja")
    assert ninja, "ninja is not installed: pip install '.[test]'"
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(folder), f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    command += ["-DCOLLECTIVES_PYTHON=OFF", f"-DCOLLECTIVES_CUDA={switch}"]
    command += [f"-DCOLLECTIVES_CORE={Path(_core.__file__).with_name('libcollectives_core.so')}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA")}
    environment["PATH"] = path
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


def targets(folder: Path) -> str:
    return (folder / "build.ninja").read_text()


class TestSwitch:
    def test_auto_says_what_it_leaves_out(self, tmp_path: Path, path_without_nvcc: str) -> None:
        done = configure(tmp_path, path_without_nvcc, "AUTO")
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if "GPUs:" in line)
        assert "left out" in line
        assert "no nvcc" in line
        assert "CUDACXX" in line
        assert "collectives_cuda" not in targets(tmp_path)

    def test_on_without_nvcc_is_an_error_that_says_what_to_do(self, tmp_path: Path, path_without_nvcc: str) -> None:
        done = configure(tmp_path, path_without_nvcc, "ON")
        assert done.returncode != 0
        text = " ".join(done.stderr.split())
        assert "COLLECTIVES_CUDA=ON, but there is no nvcc" in text
        assert "CUDACXX" in text
        assert "COLLECTIVES_CUDA=OFF" in text

    def test_off(self, tmp_path: Path) -> None:
        done = configure(tmp_path, os.environ["PATH"], "OFF")
        assert done.returncode == 0, done.stderr
        assert "COLLECTIVES_CUDA=OFF" in done.stdout
        assert "collectives_cuda" not in targets(tmp_path)

    def test_anything_else_is_refused(self, tmp_path: Path) -> None:
        done = configure(tmp_path, os.environ["PATH"], "MAYBE")
        assert done.returncode != 0
        assert "COLLECTIVES_CUDA=MAYBE: accepted are AUTO, ON, OFF" in done.stderr
