"""The shape of the repository: who includes whom, one algorithm a file, a class in few files."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from classes import Declared, classes, classes_of_the_tree
from paths import ROOT, TESTS
from rooms import CSRC, PAGE, SOURCES, own_includes, picture, room

PACKAGE = ROOT / "python" / "collectives"

TRANSPORTS = sorted(f"transports/{path.name}" for path in (CSRC / "transports").iterdir() if path.is_dir())
# Room of csrc/: the rooms whose files it may include, besides its own.
ARROWS = {
    "core": set(),
    "schedule": {"core"},
    "predict": {"core", "schedule"},
    "algorithms": {"schedule", "core"},
    "cpu": {"core"},
    "reduce": {"core"},
    "transports": {"core", "cpu", "reduce"},
    "memory": {"core", "schedule"},
    # They may be built on the links of TCP.
    **{home: {"transports", "memory", "core", "cpu"} | {"transports/tcp"} - {home} for home in TRANSPORTS},
    "recorder": {"core", "memory"},
    "replicas": {"core", "reduce", "schedule"},
    "engine": {"core", "cpu", "memory", "predict", "recorder", "reduce", "schedule", "transports"},
    "cuda": {"core", "reduce"},  # of reduce/, what CPUs and GPUs have in common
    "device": {"core", "reduce", "replicas", "schedule"},
    "nccl": {"core"},
    "verify": {"core", "memory", "schedule"},
    "bindings": {
        "core",
        "schedule",
        "predict",
        "memory",
        "reduce",
        "transports",
        "replicas",
        "recorder",
        "engine",
        "device",
        "nccl",
    }
    | {"verify"},
}
LEAVES = {"algorithms": "RegisterAlgorithm"}  # folder: what each of its files calls once

PREFIXES = (
    "all_reduce_",
    "broadcast_",
    "reduce_scatter_",
    "reduce_",
    "barrier_",
    "all_gather_",
    "all_to_all_",
    "gather_",
    "scatter_",
    "exscan_",
    "scan_",
)  # of the files in algorithms/
MOST_SOURCES = 2  # of a class, besides its header
LONGEST = 400  # lines of a Python module; about 300 is the aim

MODULES = sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_comments(source: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)


def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return found


def test_every_room_has_its_arrows():
    assert set(ARROWS) == {room(path.relative_to(CSRC).as_posix()) for path in SOURCES}


def test_there_are_no_circles():
    """Each room can be read before those that include it."""
    left = dict(ARROWS)
    while left:
        free = [name for name, others in left.items() if not others & set(left)]
        assert free, f"these rooms include each other in a circle: {sorted(left)}"
        for name in free:
            del left[name]


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_includes(path):
    own = room(path.relative_to(CSRC).as_posix())
    for included, target in own_includes(path.read_text()):
        assert target == own or target in ARROWS[own], (
            f"{name(path)} includes {included}; {own}/ may include {sorted(ARROWS[own])} only"
        )
        assert (CSRC / included).is_file(), f"{name(path)} includes {included}, which does not exist"


def test_the_reader_of_includes_sees_what_it_should():
    source = '#include "engine/engine.h"\n #  include <core/types.h>\n#include <vector>\n#include "../core/types.h"\n'
    assert own_includes(source) == [
        ("engine/engine.h", "engine"),
        ("core/types.h", "core"),
        ("../core/types.h", ""),
    ]


def test_the_picture_of_the_rooms_is_true():
    assert picture() in PAGE.read_text(encoding="utf-8"), "python tools/rooms.py"


@pytest.mark.parametrize("folder", LEAVES)
def test_one_file_registers_one_thing(folder):
    for path in sorted((CSRC / folder).glob("*.cc")):
        count = len(re.findall(rf"\b{LEAVES[folder]}\b", without_comments(path.read_text())))
        assert count == 1, f"{name(path)} registers {count} descriptors; one file registers one"


@pytest.mark.parametrize(
    "folder, what, some",
    [("transports", "RegisterTransport", {"local", "shm", "tcp"}), ("memory", "RegisterMemory", {"host", "memfd"})],
)
def test_what_registers_itself_does_so_once(folder, what, some):
    """In the file of its name; the registry itself is beside it."""
    found = set()
    for path in sorted((CSRC / folder).rglob("*.cc")):
        source = without_comments(path.read_text())
        if what in source and f"{what}::{what}" not in source:
            assert len(re.findall(rf"\b{what}\b", source)) == 1 and f'"{path.stem}"' in source, name(path)
            found.add(path.stem)
    assert found >= some


def test_a_transport_is_named_in_its_own_folder_only():
    """All others ask what it reaches and what it costs."""
    from collectives import _core

    assert {"local", "shm", "tcp"} <= _core.transports().keys()
    for path in SOURCES:
        if path.relative_to(CSRC).parts[0] != "transports":
            literals = set(re.findall(r'"([a-z_]+)"', without_comments(path.read_text())))
            named = literals & _core.transports().keys()
            assert not named, f"{name(path)} names the transport {named}"


def test_an_algorithm_is_named_in_its_own_file_only():
    """The engine chooses by descriptors: no name of an algorithm appears in it."""
    names = {
        path.stem.removeprefix(c) for path in (CSRC / "algorithms").glob("*.cc") for c in PREFIXES if c in path.stem
    }
    assert "ring" in names
    for path in SOURCES:
        if path.relative_to(CSRC).parts[0] != "algorithms":
            literals = set(re.findall(r'"([a-z_]+)"', without_comments(path.read_text())))
            assert not literals & names, f"{name(path)} names the algorithm {literals & names}"


def test_algorithms_say_what_they_do():
    for path in sorted((CSRC / "algorithms").glob("*.cc")):
        top = path.read_text().split("\n\n#include")[0].split("\n#include")[0]
        assert top.startswith("// "), f"{name(path)} does not start with its steps in prose"
        assert "// Source: " in top, f"{name(path)} does not name its source"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_frameworks_are_imported_in_their_own_folders(path):
    inside = path.relative_to(PACKAGE).parts[0]
    for framework in ("tensorflow", "torch", "jax", "keras", "cupy"):
        home = {"keras": "tensorflow"}.get(framework, framework)
        found = [module for module in imports(path) if module.split(".")[0] == framework]
        assert not found or inside == home, f"{name(path)} imports {found}; only {home}/ may"


def test_the_environment_is_read_in_one_place():
    """Our variables are read by _startup/environment.py and core/environment.cc; launchers only write them."""
    for path in MODULES:
        if path.name != "environment.py":
            read = re.findall(r"(?:environ(?:\.get\(|\[)|getenv\()\s*f?[\"']COLLECTIVES_\w*", path.read_text())
            written = re.findall(r"environ\[f?[\"']COLLECTIVES_\w*[\"']\]\s*=[^=]", path.read_text())
            assert len(read) == len(written), f"{name(path)} reads {read}"
    readers = [name(path) for path in SOURCES if re.search(r"\bgetenv\b", without_comments(path.read_text()))]
    assert readers == ["csrc/core/environment.cc"], "core/environment.h reads variables"


def test_every_atomic_access_states_its_order():
    """Of memory that ranks share, the order is part of the protocol; of other memory it is good manners."""
    accesses = 0
    for path in SOURCES:
        text = without_comments(path.read_text())
        for call in re.finditer(r"(?:\.|->)(?:load|store|exchange|fetch_\w+|compare_exchange_\w+)\(", text):
            if path.relative_to(CSRC).parts[0] == "reduce":
                continue  # vector registers are loaded and stored there
            accesses += 1
            assert "memory_order" in text[call.start() : text.index(";", call.start())], f"{name(path)}: {call[0]}...)"
    assert accesses > 50


def scattered(found: dict[str, Declared]) -> dict[str, list[str]]:
    """Classes that cannot be read in one header and two sources, and where they are."""
    return {
        name: sorted(where.declared | where.defined)
        for name, where in found.items()
        if len(where.declared) > 1 or len(where.headers) > 1 or len(where.sources) > MOST_SOURCES
    }


def test_a_class_lives_in_one_header_and_two_sources():
    found = scattered(classes_of_the_tree())
    assert not found, f"make these several classes: {found}"


CLASSES = {
    "a.h": """
        namespace a {
        class Outer final : public Base<int> {
         public:
          Outer() : x_{1}, y_(2) {}
          struct Inner { void g(); Inner& operator=(const Inner&); };
          void f(int x = 1'000);
          enum class Kind : int { kOne };
          int x_ = 0, y_{3};
        };
        template <typename T> struct Box { T get() const; operator bool() const; T operator()(int) const; };
        std::string none_of(Outer& o);
        inline void Outer::in_header() {}
        }
    """,
    "a.cc": """
        // void a::Outer::in_a_comment() {}
        #define BRACE {
        namespace a {
        namespace { class Outer { void f(); }; void Outer::f() {} const Outer outer{std::make(Outer::k())}; }
        Outer::Outer(int x) : x_{x}, y_(none_of({"{"})) { Else::call(); }
        std::vector<Outer> Outer::Inner::g() { return {}; }
        }  // namespace a
    """,
    "b.cc": """
        namespace a { [[nodiscard]] auto Outer::f(int x) -> decltype(x) { return '{' + R"x(})x"[0]; } }
        a::Outer::~Outer() = default;
        template <typename T> T a::Box<T>::operator()(int) const { return {}; }
        std::string a::none_of(a::Outer& o) { return o.f<2>(); }
    """,
    "c.cc": """
        namespace a { Outer::Inner& Outer::Inner::operator=(const Outer::Inner& o) { return *this; }
        template <typename T> Box<T>::operator bool() const { return true; } }
        template <> int a::Box<int>::get() const { return 1; }
    """,
}


def test_the_reader_of_classes_sees_what_it_should():
    found = classes(CLASSES)
    assert {name: (where.declared, where.defined) for name, where in found.items()} == {
        "a::Outer": ({"a.h"}, {"a.h", "a.cc", "b.cc", "c.cc"}),
        "a::Outer::Inner": ({"a.h"}, {"a.cc", "c.cc"}),
        "a::Box": ({"a.h"}, {"b.cc", "c.cc"}),
        "a::(in a.cc)::Outer": ({"a.cc"}, {"a.cc"}),
    }
    assert scattered(found) == {"a::Outer": ["a.cc", "a.h", "b.cc", "c.cc"]}
    assert scattered(classes({**CLASSES, "b.h": "namespace a { void Outer::Inner::g() {} }"})).keys() == {
        "a::Outer",
        "a::Outer::Inner",
    }
    assert scattered(classes({"a.h": "class A { };", "b.h": "class A { };"})) == {"A": ["a.h", "b.h"]}
    with pytest.raises(ValueError, match="no declaration"):
        classes({"a.cc": "void Unknown::f() {}"})
    with pytest.raises(ValueError, match=r"a\.cc cannot be read"):
        classes({"a.cc": "void f() {"})


def test_every_member_function_is_seen():
    """Against a search by line, which knows neither scopes nor templates, and so sees fewer."""
    seen = classes_of_the_tree()
    count = 0
    for path in SOURCES:
        if path.suffix == ".cc" and "cuda" not in path.parts:
            for owner in re.findall(r"^[\w][^;=#/\n]*?\b([A-Z]\w+)::~?\w+\([^;\n]*\{$", path.read_text(), re.MULTILINE):
                count += 1
                homes = [where for found, where in seen.items() if found.rpartition("::")[2] == owner]
                assert any(name(path) in where.defined for where in homes), f"{owner} in {name(path)}"
    assert count > 300


def test_python_modules_are_short():
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {path: count for path, count in lines.items() if count > LONGEST}
    assert not long, f"split these modules: {long}"


# Rooms of tests/ that hold no tests of Python: what they lend is in docs/testing.md as well.
WITHOUT_TESTS = {"support"}


def rooms_of_tests() -> list[str]:
    found = (path for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__")
    return sorted(path.name for path in found)


def test_each_test_is_in_a_room():
    assert [path.name for path in TESTS.iterdir() if path.is_file()] == ["conftest.py"]
    for path in TESTS.rglob("test_*.py"):
        assert path.parent.parent == TESTS and path.parent.name not in WITHOUT_TESTS, f"move {name(path)} to a room"
    for own in set(rooms_of_tests()) - WITHOUT_TESTS:
        assert list((TESTS / own).glob("test_*.py")), f"tests/{own}/ has no tests: move its helpers to tests/support/"


def test_no_two_modules_of_tests_have_one_name():
    """All are imported by their plain names."""
    paths = [*TESTS.rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    names = Counter(path.stem for path in paths if path.parent.name != "net" or path.stem.startswith("test_"))
    assert not [name for name, count in names.items() if count > 1]


@pytest.mark.parametrize("own", rooms_of_tests())
def test_rooms_of_tests_import_only_their_own_helpers_and_those_of_support(own):
    homes = {path.stem: path.parent.name for path in TESTS.glob("*/*.py")}
    for path in (TESTS / own).rglob("*.py"):
        for module in imports(path):
            home = homes.get(module.split(".")[0], own)
            assert home in (own, "support"), (
                f"{name(path)} imports {module} of tests/{home}/: move it to tests/support/"
            )


def test_the_page_lists_the_rooms_of_tests():
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `tests/(\w+)/` \|", page, re.MULTILINE) == rooms_of_tests()


def test_no_room_of_tests_passes_for_a_library():
    """The folder of conftest.py, were it in sys.path, would make `tensorflow` importable where it is not installed."""
    assert str(TESTS) not in sys.path
