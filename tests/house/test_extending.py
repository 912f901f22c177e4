"""One of each thing that docs/extending.md explains: made in a copy of the tree by what the page lists, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from collectives import _core
from paths import ROOT

PACKAGE = Path(_core.__file__).parent
LIMIT = 120.0  # seconds that nothing here may reach
COPIED = (
    *("csrc", "python", "bench", "tests", "tools", "docs", "examples", ".ci"),
    *("CMakeLists.txt", "pyproject.toml"),
)
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
# Of the tests of the house those that say what is where, and of the bench those that list names.
LOOKED_AT = "not rooms_of_tests and not class and not member_function and (not bad_input or fastest or nobody)"
FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror")

LAUNCHER = '''
"""Gives each process a ticket: RANK/SIZE/ADDRESS."""

import contextlib
from typing import NamedTuple

from ..environment import read_environment
from . import Launcher


class Job(NamedTuple):
    rank: int
    size: int
    address: str
    RANK_VARIABLE = SIZE_VARIABLE = "TICKET"

    def meet(self, **arguments):
        place = {"rank": self.rank, "size": self.size, "rendezvous": self.address}
        return contextlib.nullcontext(read_environment(**place, **arguments))


class _Tickets(Launcher):
    def find_job(self, variables):
        if "TICKET" not in variables:
            return None
        rank, size, address = variables["TICKET"].split("/")
        return Job(int(rank), int(size), address)


LAUNCHER = _Tickets("the office of tickets", "TICKETS")
'''

LIBRARY = '''
"""Boxes, which have their values in an array of NumPy."""

from ..adapted import Adapted, same
from . import Arrays


class _Boxes(Arrays):
    def adapter(self, module, x):
        return (lambda box, what: Adapted(box.values, True, same)) if isinstance(x, module.Box) else None


ARRAYS = _Boxes()
'''

PEER = '''
"""Two ranks that send each other their arrays through pipes."""

import json
import os
import sys
from pathlib import Path

import numpy as np

from . import launched

NAME = "pipes"
LEVELS = ("python",)
REQUIREMENTS = []
_ends = []


def locate(directory):
    return Path(sys.prefix)


def unsupported(config):
    return "" if config.ranks == 2 else "only two ranks"


def command(environment, config, program):
    for rank in range(2):
        os.mkfifo(Path(program[-1]) / f"to-{rank}")
    launcher = [sys.executable, "-m", "collectives", "run", "-n", "2", sys.executable]
    return [*launcher, *program], {"PIPES": program[-1]}


def join():
    folder = Path(os.environ["PIPES"])
    rank, size = launched.rank_and_size()
    # Opening waits for the other rank.
    for to in range(2):
        _ends.append(open(folder / f"to-{to}", "rb" if to == rank else "wb", buffering=0))
    source, target = _ends if rank == 0 else reversed(_ends)
    _ends[:] = source, target

    def share(value):
        if rank == 1:
            return json.loads(source.readline())
        target.write(json.dumps(value).encode() + b"\\n")
        return value

    return rank, size, share


def abort():
    os._exit(1)


def ways(collective, nbytes, ranks):
    return ["both ways"]


def prepare(way, collective, x, op):
    source, target = _ends

    def call():
        target.write(x.tobytes())
        x[...] += np.frombuffer(source.read(x.nbytes), x.dtype)

    return call


def fetch(x):
    pass
'''

TRANSPORT = """
// TCP by another name.

#include "transports/tcp/link.h"

namespace collectives {
namespace {

class AgainLink final : public TcpLink {
 public:
  using TcpLink::TcpLink;
  std::string_view transport() const override { return "tcp_again"; }
};

std::unique_ptr<Link> connect(int socket, int peer) { return std::make_unique<AgainLink>(socket, peer); }

const RegisterTransport registration({
    .name = "tcp_again",
    .description = "TCP by another name",
    .reach = Reach::kNetwork,
    .cost = {7.0, 3000},
    .memory = "",
    .over_domain = nullptr,
    .mail_over_domain = nullptr,
    .connect = connect,
});

}  // namespace
}  // namespace collectives
"""

DTYPE_ROW = '  X(kInt4,         "int4",          1,  kSigned,   false, kInt,          29, kNcclLacks) \\\n'
DTYPE_LINE = "template <> struct KernelsOf<DType::kInt4> : Integer<std::uint8_t, std::int8_t> {};\n"

# Two ranks, started by the launcher, reduce an array of the library by the algorithm over the transport.
PROGRAM = """
import json, sys, types
import numpy as np

boxes = sys.modules["boxes"] = types.ModuleType("boxes")
boxes.Box = type("Box", (), {"__init__": lambda self, values: setattr(self, "values", values)})

import collectives
from collectives import _core

comm = collectives.init(timeout=60)
box = boxes.Box(np.full(1000, comm.rank + 1.0))
same = comm.all_reduce(box, algorithm="round") is box
print(json.dumps({
    "place": [comm.rank, comm.size], "same": same, "values": sorted(set(box.values)),
    "carried": sorted(comm.bytes_by_transport()), "near to far, fast to slow": list(_core.transports()),
    "proven": _core._verify("all_reduce", "round", 3, count=100)["ok"],
}))
comm.close()
"""


class Change(NamedTuple):
    """Lines of a file that are new, and lines that are gone."""

    added: int
    removed: int


class Tree:
    """A copy of the repository, in which files are added and changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.library = folder.parent / "again.so"  # of what is added to csrc/

    def add(self, path: str, text: str) -> None:
        """Adds a file."""
        assert not (self.root / path).exists(), f"{path} would be an edit"
        (self.root / path).parent.mkdir(exist_ok=True)
        (self.root / path).write_text(text.lstrip("\n"), encoding="utf-8")

    def insert(self, path: str, before: str, line: str) -> None:
        """Adds a line to a file."""
        text = (self.root / path).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{path} has {before!r} {text.count(before)} times"
        (self.root / path).write_text(text.replace(before, line + before), encoding="utf-8")

    def preload(self) -> str:
        """LD_PRELOAD of processes in which the library is a part of the engine."""
        return ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(self.library))))

    def changes(self) -> dict[str, Change]:
        """By file, how it differs from the repository."""
        found = {}
        for path in sorted(p for p in self.root.rglob("*") if p.is_file() and not p.is_symlink()):
            name = path.relative_to(self.root).as_posix()
            mine, theirs = path.read_bytes(), (ROOT / name).read_bytes() if (ROOT / name).exists() else b""
            if mine != theirs and "__pycache__" not in name:
                new, old = mine.decode().splitlines(), theirs.decode().splitlines()
                kept = [line for line in old if line in set(new)]
                found[name] = Change(len(new) - len(kept), len(old) - len(kept))
        return found

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command with the package of this tree."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        environment |= {"PYTHONPATH": str(self.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"} | variables
        return subprocess.run(
            [*map(str, command)],
            cwd=self.root,
            env=environment,
            timeout=LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """With one of each but for the dtype, and the library of what is in C++."""
    made = Tree(tmp_path_factory.mktemp("extending") / "tree")
    made.root.mkdir()
    for name in (*COPIED, *PAGES):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, made.root / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, made.root / name)
    for library in PACKAGE.glob("*.so"):
        (made.root / "python/collectives" / library.name).symlink_to(library.resolve())
    ring = (made.root / "csrc/algorithms/all_reduce_ring.cc").read_text(encoding="utf-8")
    assert ring.count('"ring"') == 1
    made.add("csrc/algorithms/all_reduce_round.cc", ring.replace('"ring"', '"round"'))
    made.add("csrc/transports/tcp_again/tcp_again.cc", TRANSPORT)
    made.add("python/collectives/_startup/launchers/tickets.py", LAUNCHER)
    made.add("python/collectives/_arrays/libraries/boxes.py", LIBRARY)
    made.add("bench/peers/pipes.py", PEER)
    engine = (PACKAGE / "libcollectives_core.so").resolve()
    done = made.run(
        *("g++", *FLAGS, "-O0", "-fPIC", "-shared", "-Icsrc", "-o", made.library),
        *("csrc/algorithms/all_reduce_round.cc", "csrc/transports/tcp_again/tcp_again.cc"),
        *(engine, f"-Wl,-rpath,{engine.parent}"),
    )
    assert done.returncode == 0, done.stderr
    return made


def listed() -> dict[str, str]:
    """From the table of the page: for each thing, the pattern of what it takes."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    found = {}
    for what, takes in re.findall(r"^\| \[([\w ]+)\]\(#[\w-]+\) \| (.*?) \|$", page, re.MULTILINE):
        found[what] = re.sub(r"<\w+>", r"\\w+", re.escape(takes.replace("`", "")))
    return found


def test_each_takes_what_the_page_says(tree: Tree) -> None:
    said = listed()
    changes = tree.changes()
    assert all(change.removed == 0 for change in changes.values()), changes
    for what, home in {
        "algorithm": "csrc/algorithms/",
        "transport": "csrc/transports/",
        "launcher": "python/collectives/_startup/",
        "array library": "python/collectives/_arrays/",
        "bench peer": "bench/",
    }.items():
        (name,) = (name for name in changes if name.startswith(home))
        assert re.fullmatch(said.pop(what), name), f"{what}: {name}"
        del changes[name]
    assert not changes
    assert set(said) == {"dtype", "op"}


def test_launcher_library_algorithm_and_transport_work(tree: Tree) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        variables = {
            "PYTHONPATH": str(tree.root / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LD_PRELOAD": tree.preload(),
            "COLLECTIVES_TOKEN": "of the test",
            "COLLECTIVES_TRANSPORT": "tcp_again",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=os.environ | variables | {"TICKET": f"{rank}/2/{address}"} | fd,
                pass_fds=[listener.fileno()] if fd else [],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, fd in enumerate(({"COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno())}, {}))
        ]
    for rank, process in enumerate(ranks):
        printed, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said
        wanted: dict[str, Any] = {
            "place": [rank, 2],
            "same": True,
            "values": [3.0],
            "carried": ["tcp_again"],
            "near to far, fast to slow": ["local", "shm", "tcp", "tcp_again"],
            "proven": True,
        }
        assert json.loads(printed) == wanted


def test_the_peer_is_measured(tree: Tree) -> None:
    options = ("-n", 2, "--vs", "pipes", "--level", "python", "-b", 8, "-e", 8, "--duration", 0.02, "--timeout", 60)
    done = tree.run(sys.executable, "bench/allreduce.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both ways" in done.stdout and done.stdout.rstrip().endswith(" 0 wrong"), done.stdout


def test_nothing_else_has_to_know_of_them(tree: Tree) -> None:
    """Not the README, nor the pages, nor the tests that look at both, at the tree and at what is registered."""
    done = tree.run(
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"),
        *("tests/house/test_structure.py", "tests/house/test_documents.py", "tests/launch/test_launch.py::test_info"),
        *("tests/bench/test_bench.py::test_bad_input", "-k", LOOKED_AT),
        LD_PRELOAD=tree.preload(),
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_dtype_is_a_row_and_a_line_for_its_kernels(tree: Tree) -> None:
    """Only what the compiler says is looked at: to make all kernels takes minutes."""
    before = tree.changes()
    look = ("g++", *FLAGS, "-fsyntax-only", "-Icsrc", "csrc/reduce/baseline.cc")
    tree.insert("csrc/core/dtypes.h", "  /* New rows above. */\n", DTYPE_ROW)
    lacks = tree.run(*look)
    assert lacks.returncode != 0 and "KernelsOf<collectives::DType::kInt4>" in lacks.stderr, lacks.stderr
    tree.insert("csrc/reduce/kernels.h", "// clang-format on\n\nReduceFunction kernel", DTYPE_LINE)
    done = tree.run(*look, "csrc/core/types.cc", "csrc/nccl/operation.cc")
    assert done.returncode == 0, done.stderr
    changes = {name: change for name, change in tree.changes().items() if name not in before}
    assert changes == {"csrc/core/dtypes.h": Change(1, 0), "csrc/reduce/kernels.h": Change(1, 0)}
    assert listed()["dtype"] == re.escape("a row of csrc/core/dtypes.h; a line of csrc/reduce/kernels.h")
