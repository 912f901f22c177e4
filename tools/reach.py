"""Which tests a change can reach, the closest first, each with the path to it.

    python tools/reach.py csrc/engine/executor/executor.cc docs/design.md
    python tools/reach.py --plain PATH ...    only the names

The ways are those of the text. C++: an include line leads to a header, a header to the files that implement it: of the
same name, with functions of its classes, or registering themselves by a class that it declares. Python: an import leads
to a module, `_core.name` to the file of csrc/bindings/ that defines the name, a fixture to what it uses. A path in a
string of Python leads to that file or folder. The distance of a test is the number of such steps. Among tests at one
distance those come first whose names and texts have most of the words of the file's name, then those that reach the
least besides.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CXX = (".h", ".cc", ".cu")
# Libraries that Python loads by their name: where their sources are.
LOADED = {"_tensorflow.so": "csrc/bindings/tensorflow", "libcollectives_cuda.so": "csrc/cuda"}
TOP = ("bench", "csrc", "docs", "examples", "python", "python/collectives", "tests", "tools")
CORE = "csrc/bindings/setup/module.cc"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
CLASS = re.compile(r"^(?:class|struct)\s+(?:alignas\(\w+\)\s+)?(\w+)[^;{]*\{", re.MULTILINE)
FUNCTION = re.compile(r"^[\w(\[][^;=\n#]*?\b(\w+)::~?\w+\(", re.MULTILINE)
BOUND = re.compile(r'(?:\bdef\(|\(m,|\battr\(|\{)\s*"(\w+)"')
REGISTERED = re.compile(r"^const (Register\w+) ", re.MULTILINE)


@dataclass(frozen=True)
class Reached:
    """A test, and the path from it to a changed file."""

    test: str  # a file test_*.py of Python, or *_test.cc of C++
    way: tuple[str, ...]
    mentions: int
    reaches: int  # files in all

    @property
    def distance(self) -> int:
        return len(self.way) - 1

    @property
    def name(self) -> str:
        """For pytest or ctest."""
        return Path(self.test).stem if self.is_cxx else self.test

    @property
    def is_cxx(self) -> bool:
        return self.test.endswith(".cc")


def is_test(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if name.endswith(".py"):
        return path.startswith("tests/") and name.startswith("test_")
    return (folder == "tests/cpp" and name.endswith("_test.cc")) or path == "tests/fuzz/frames_fuzz.cc"


def files_of(root: Path) -> list[str]:
    """The files of the working copy that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (root / name).is_file())


@dataclass
class Module:
    """The references of a Python file: imported modules, names of _core, paths in strings, fixtures."""

    imports: list[str] = field(default_factory=list)
    core: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)
    takes: set[str] = field(default_factory=set)
    fixtures: dict[str, Module] = field(default_factory=dict)


class Graph:
    """All steps from each file of a working copy."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.files = files_of(root)
        self._known = set(self.files)
        self._folders = {str(parent) for name in self.files for parent in Path(name).parents} - {"."}
        self.steps: dict[str, list[str]] = {name: [] for name in self.files}
        # A test that names a top-level folder reads texts there; these lead to no other file.
        self.read: dict[str, list[str]] = {}
        self._text: dict[str, str] = {}
        self._known_ways: dict[str, dict[str, str]] = {}
        self._known_words: dict[str, set[str]] = {}
        self._add_cxx([name for name in self.files if name.endswith(CXX)])
        self._add_python([name for name in self.files if name.endswith(".py")])

    def text(self, name: str) -> str:
        if name not in self._text:
            self._text[name] = (self.root / name).read_text(errors="replace")
        return self._text[name]

    @property
    def tests(self) -> list[str]:
        return [name for name in self.files if is_test(name)]

    def reached(self, changed: Iterable[str]) -> list[Reached]:
        """The tests that reach any of the files, the closest first."""
        targets = {self.relative(path) for path in changed}
        words = {word for target in targets for word in subject(target)}
        found = []
        for test in self.tests:
            ways = self._ways(test)
            reached = [target for target in targets if target in ways]
            if not reached:
                continue
            way = min((self._way(ways, target) for target in reached), key=lambda way: (len(way), way))
            found.append(Reached(test, way, self._mentions(test, words), len(ways)))
        return sorted(found, key=lambda r: (r.distance, -r.mentions, r.reaches, r.test))

    def _mentions(self, test: str, words: set[str]) -> int:
        """How many of the words the text contains; a word in the name of the test counts three times."""
        if test not in self._known_words:
            self._known_words[test] = set(re.findall(r"[a-z0-9]+", self.text(test)))
        text = self._known_words[test]
        own = Path(test).stem.split("_")
        return sum(word in text for word in words) + 2 * sum(any(w.startswith(word) for w in own) for word in words)

    def relative(self, path: str) -> str:
        full = Path(path) if Path(path).is_absolute() else self.root / path
        return full.resolve().relative_to(self.root.resolve()).as_posix()

    def _ways(self, test: str) -> dict[str, str]:
        """For each file that the test reaches, the file before it on a shortest path."""
        if test in self._known_ways:
            return self._known_ways[test]
        self._known_ways[test] = before = {test: ""}
        queue = deque([test])
        while queue:
            here = queue.popleft()
            for there in self.steps.get(here, []):
                if there not in before:
                    before[there] = here
                    queue.append(there)
        for there in self.read.get(test, []):
            if there != test:
                before[there] = test
        return before

    @staticmethod
    def _way(before: dict[str, str], target: str) -> tuple[str, ...]:
        way = [target]
        while before[way[-1]]:
            way.append(before[way[-1]])
        return tuple(reversed(way))

    # --- C++ ---

    def _add_cxx(self, names: list[str]) -> None:
        code = {name: COMMENT.sub("", self.text(name)) for name in names}
        for name in names:
            for included in INCLUDE.findall(code[name]):
                beside = (Path(name).parent / included).as_posix()
                self._step(name, *(there for there in (f"csrc/{included}", beside) if there in self._known))
        homes: dict[str, list[str]] = {}
        for name in names:
            if name.endswith(".h"):
                for declared in CLASS.findall(code[name]):
                    homes.setdefault(declared, []).append(name)
        for name in names:
            if name.endswith(".h") or not name.startswith("csrc/"):
                continue
            used = {*FUNCTION.findall(code[name]), *REGISTERED.findall(code[name])}
            known = self._included(name)
            headers = {home for declared in used for home in homes.get(declared, []) if home in known}
            own = str(Path(name).with_suffix(".h"))
            headers |= {own} & self._known
            for header in sorted(headers):
                self._step(header, name)

    def _included(self, name: str) -> set[str]:
        """Headers that the file includes, and those that these include."""
        found: set[str] = set()
        queue = [name]
        while queue:
            new = {there for there in self.steps[queue.pop()] if there.endswith(".h")} - found
            found |= new
            queue += sorted(new)
        return found

    # --- Python ---

    def _add_python(self, names: list[str]) -> None:
        bound = self._bound_names()
        modules = {name: self._read(name) for name in names}
        shared = modules.get("tests/conftest.py", Module())
        for name, module in modules.items():
            self._add_module(name, name, module, bound)
            for fixture in self._closure(module.takes, shared):
                self._add_module(name, "tests/conftest.py", shared.fixtures[fixture], bound)
            if is_test(name):
                self._step(name, "tests/conftest.py")

    @staticmethod
    def _closure(takes: set[str], shared: Module) -> list[str]:
        found: list[str] = []
        queue = sorted(takes)
        while queue:
            fixture = queue.pop()
            if fixture in shared.fixtures and fixture not in found:
                found.append(fixture)
                queue += sorted(shared.fixtures[fixture].takes)
        return found

    def _add_module(self, name: str, home: str, module: Module, bound: dict[str, list[str]]) -> None:
        for imported in module.imports:
            self._step(name, *self._files_of_module(imported, home))
        for used in sorted(module.core):
            self._step(name, *bound.get(used, [CORE]))
        for path in module.paths:
            self._step_to(name, path.rstrip("/"), path.endswith("/"))

    def _step_to(self, name: str, path: str, is_ours: bool) -> None:
        """To the file or the folder that a string names, by its whole path or its end."""
        ending = [other for other in self.files if other.endswith(f"/{path}")]
        folders = [path] if path in self._folders else []
        if not folders and is_ours:
            folders = [folder for folder in self._folders if folder.endswith(f"/{path}")]
        if path in self._known:
            self._step(name, path)
        elif path in LOADED:
            self._step(name, *self._below(LOADED[path]))
        elif path in TOP:
            self.read.setdefault(name, []).extend(self._below(path))
        elif len(folders) == 1:
            self._step(name, *(other for other in self._below(folders[0]) if not is_test(other)))
        elif len(ending) == 1:
            self._step(name, ending[0])

    def _below(self, folder: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{folder}/")] if folder in self._folders else []

    def _bound_names(self) -> dict[str, list[str]]:
        """Of each name in quotes in csrc/bindings/: the files that define it, as a function or a class."""
        found: dict[str, list[str]] = {}
        for name in self.files:
            if name.startswith("csrc/bindings/") and name.endswith(".cc"):
                text = self.text(name)
                for bound in BOUND.findall(text):
                    found.setdefault(bound, []).append(name)
        return found

    def _files_of_module(self, module: str, importer: str) -> Iterator[str]:
        path = module.replace(".", "/")
        for base in ("python/", f"{Path(importer).parent}/", "tests/support/", "bench/", "tools/", ""):
            for there in (f"{base}{path}.py", f"{base}{path}/__init__.py"):
                if there in self._known:
                    yield there
                    return

    def _read(self, name: str) -> Module:
        tree = ast.parse(self.text(name))
        whole = self._module_of(name, [tree])
        if name == "tests/conftest.py":
            # Only tests that use a fixture depend on what it uses, so not every test depends on all of conftest.py.
            top = {alias: module for node in tree.body for alias, module in self._aliases(name, node)}
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and any("fixture" in ast.dump(d) for d in node.decorator_list):
                    fixture = self._module_of(name, [node])
                    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                    fixture.imports += sorted({top[alias] for alias in used if alias in top})
                    whole.fixtures[node.name] = fixture
            whole.imports, whole.paths, whole.takes = [], [], set()
        return whole

    def _module_of(self, name: str, nodes: list[ast.AST]) -> Module:
        module = Module()
        for node in (inner for outer in nodes for inner in ast.walk(outer)):
            module.imports += [imported for _, imported in self._aliases(name, node)]
            if isinstance(node, ast.Attribute) and name_of(node.value) == "_core":
                module.core.add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                module.takes |= {argument.arg for argument in node.args.args}
            elif isinstance(node, ast.Call) and name_of(node.func) in ("bench_module", "import_module"):
                module.imports += [
                    a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                ]
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                module.paths += self._joined(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                module.paths += [node.value] if "/" in node.value or node.value in LOADED else []
        return module

    @staticmethod
    def _joined(node: ast.AST) -> list[str]:
        """The constant end of `ROOT / "docs" / "x.md"`, as a path."""
        parts: list[str] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            if not (isinstance(node.right, ast.Constant) and isinstance(node.right.value, str)):
                return []
            parts.insert(0, node.right.value)
            node = node.left
        # A folder at the end is one of ours only where the beginning is a constant.
        constant = isinstance(node, ast.Name) and node.id.isupper()
        return ["/".join(parts) + ("/" if constant else "")]

    def _aliases(self, name: str, node: ast.AST) -> list[tuple[str, str]]:
        """(the name it gets, the module) of an import."""
        if isinstance(node, ast.Import):
            return [(alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names]
        if not isinstance(node, ast.ImportFrom):
            return []
        base = node.module or ""
        if node.level:
            folder = Path(name).parents[node.level - 1].as_posix().removeprefix("python/").replace("/", ".")
            base = f"{folder}.{base}".rstrip(".")
        found = []
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            is_module = any(True for _ in self._files_of_module(inner, name))
            if base == "collectives" and alias.name == "_core":
                continue  # its names say more, see Module.core
            found.append((alias.asname or alias.name, inner if is_module else base))
        return found

    def _step(self, name: str, *there: str) -> None:
        self.steps[name] += [other for other in there if other != name and other not in self.steps[name]]


def name_of(node: ast.AST) -> str:
    """The last name in `a.b.c`."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def subject(path: str) -> set[str]:
    """The words by which a test may refer to a file."""
    return {word for word in (Path(path).parent.name, *Path(path).stem.split("_")) if len(word) > 2}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="only the names of the tests")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="what has changed")
    options = parser.parse_args(arguments)
    graph = Graph()
    for reached in graph.reached(options.paths):
        print(reached.test if options.plain else f"{reached.distance} {reached.test}: {' -> '.join(reached.way)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
