"""Writes python/collectives/_core.pyi from the compiled module, or checks it.

    python tools/make_stub.py           writes the stub
    python tools/make_stub.py --check   fails when the stub is not what this would write

Functions of pybind11 carry their signature in the first line of their docstring. The methods of `Communicator` are
written by hand in C++ and have a `__text_signature__` only; the types of their parameters are in the table below.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from collectives import _core

STUB = Path(__file__).resolve().parent.parent / "python" / "collectives" / "_core.pyi"

HEADER = '''\
# Written by tools/make_stub.py; do not edit.
"""{doc}"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

from ._calls.options import CallOptions
from .work import Work as _PublicWork

_Arrays = TypeVar("_Arrays", bound=npt.NDArray[Any] | Sequence[npt.NDArray[Any]])
_Out = TypeVar("_Out", bound=npt.NDArray[Any] | Sequence[npt.NDArray[Any]])
'''

PARAMETERS = {
    "x": "_Arrays",
    "op": "str",
    "root": "int | np.integer[Any]",
    "out": "_Arrays | None",
    "algorithm": "str",
    "deterministic": "bool",
    "timeout": "float | None",
    "name": "str | None",
    "collective": "str",
    "inputs": "list[npt.NDArray[Any]]",
    "outputs": "list[npt.NDArray[Any]]",
    "targets": "list[npt.NDArray[Any]] | None",
    "peer": "int | None",
    "tag": "int",
    "sending": "bool",
    "arrays": "list[npt.NDArray[Any]]",
    "lengths": "list[int] | None",
    "rows": "Sequence[Sequence[int]] | npt.NDArray[np.int64] | None",
    "expected": "Sequence[Sequence[int]] | npt.NDArray[np.int64] | None",
    "is_list": "bool",
    "per_rank": "tuple[bool, bool]",
    "known": "npt.NDArray[np.int64] | None",
    "factor": "float | None",
    "stream": "object",
    "options": "CallOptions",
}

RESULTS = {"_exchange_layouts": "tuple[npt.NDArray[np.int64], int, bool]"}  # of methods that start nothing

# What pybind11 says about parameters that take anything like a number, and about containers.
WORDS = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
    "collections.abc.Mapping": "Mapping",
    "collections.abc.Sequence": "Sequence",
    "collectives._core.": "",
}
GENERIC = {"list": "list[Any]", "dict": "dict[str, Any]", "tuple": "tuple[Any, ...]"}


class _Annotations(ast.NodeTransformer):
    """Gives the bare containers in annotations their arguments."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.slice = self.visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.parse(GENERIC.get(node.id, node.id), mode="eval").body


def pybind_function(function: Any, *, method: bool = False) -> str:
    """`def` line of a function of pybind11."""
    line = (function.__doc__ or "").splitlines()[0]
    for word, replacement in WORDS.items():
        line = line.replace(word, replacement)
    definition = ast.parse(f"def {line}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    parameters = definition.args
    # Arguments without a name cannot be given by name.
    if any(a.arg.startswith("arg") for a in parameters.args):
        parameters.posonlyargs, parameters.args = parameters.args, []
    for parameter in [*parameters.posonlyargs, *parameters.args]:
        if parameter.annotation is not None:
            parameter.annotation = _Annotations().visit(parameter.annotation)
        if method and parameter.arg == "self":
            parameter.annotation = None
    assert definition.returns is not None
    definition.returns = _Annotations().visit(definition.returns)
    return ast.unparse(definition).replace(":\n    ...", ": ...")


def raw_method(name: str, function: Any) -> list[str]:
    """`def` lines of a method of Communicator: in place, with `out`, and asynchronous."""
    signature = inspect.signature(function)
    names = signature.parameters
    if name.startswith("_run_"):  # they sort out by themselves what they can take
        defaults = {n: "" if p.default is p.empty else f" = {p.default!r}" for n, p in names.items()}
        return [_definition(name, signature, {n: f"object{d}" for n, d in defaults.items()}, "Any")]
    if "async_op" not in names:
        return [_definition(name, signature, {}, RESULTS.get(name, "Work"))]
    doc = inspect.getdoc(function) or ""
    blocking = {"async_op": "Literal[False] = False"}
    begun = {"async_op": "Literal[True]"}
    if "x" not in names:
        forms = [
            _definition(name, signature, blocking, "None", doc),
            _definition(name, signature, begun, "_PublicWork[None]"),
        ]
    else:
        none = " | None" if name == "exscan" else ""  # rank 0 gets nothing
        forms = [
            _definition(name, signature, {**blocking, "out": "None = None"}, f"_Arrays{none}", doc),
            _definition(name, signature, {**blocking, "out": "_Out"}, f"_Out{none}"),
            _definition(name, signature, {**begun, "out": "None = None"}, f"_PublicWork[_Arrays{none}]"),
            _definition(name, signature, {**begun, "out": "_Out"}, f"_PublicWork[_Out{none}]"),
        ]
    return ["@overload\n" + form for form in forms]


def _definition(name: str, signature: inspect.Signature, types: dict[str, str], result: str, doc: str = "") -> str:
    """A `def` line. `types`: parameters whose type (and default) differs from the table."""
    words = []
    for parameter in signature.parameters.values():
        if parameter.kind == parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        if parameter.name == "self":
            words.append("self")
        elif parameter.name in types:
            words.append(f"{parameter.name}: {types[parameter.name]}")
        else:
            default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
            words.append(f"{parameter.name}: {PARAMETERS[parameter.name]}{default}")
    line = f"def {name}({', '.join(words)}) -> {result}:"
    return f'{line}\n    """{doc}\n    """' if "\n" in doc else f'{line}\n    """{doc}"""' if doc else f"{line} ..."


def pybind_class(kind: type) -> str:
    """A class of pybind11."""
    lines = ["@final", f"class {kind.__name__}:", f'    """{kind.__doc__}"""', ""]
    if "buffer protocol" in (kind.__doc__ or ""):
        lines.append("    def __buffer__(self, flags: int, /) -> memoryview: ...")
    for name, member in sorted(vars(kind).items()):
        made = name == "__init__" and (member.__doc__ or "").startswith("__init__(")
        if name.startswith("_") and not made:
            continue
        if isinstance(member, property):
            result = re.search(r"-> (\w+(?: \| None)?)", member.fget.__doc__ or "")[1]  # type: ignore[index]
            lines += ["    @property", f"    def {name}(self) -> {result}: ..."]
        else:
            lines.append("    " + pybind_function(member, method=True))
    return "\n".join(lines)


def raw_class(kind: type) -> str:
    """The class whose methods are written by hand."""
    blocks = [
        f'@disjoint_base\nclass {kind.__name__}:\n    """{kind.__doc__}"""\n',
        "    def __new__(cls, handle: object, /) -> Self: ...",
    ]
    for name, member in sorted(vars(kind).items()):
        if isinstance(member, types.MethodDescriptorType):
            for text in raw_method(name, member):
                blocks.append("\n".join("    " + line if line else "" for line in text.splitlines()))
    return "\n".join(blocks)


def stub() -> str:
    """The text of the stub."""
    parts = [HEADER.format(doc=_core.__doc__)]
    for name, member in sorted(vars(_core).items()):
        if name.startswith("__"):
            continue
        if inspect.isclass(member):
            parts.append(raw_class(member) if name == "Communicator" else pybind_class(member))
        else:
            parts.append(pybind_function(member))
    text = "\n\n".join(parts) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Writes or checks the stub."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = stub()
    if not parser.parse_args().check:
        STUB.write_text(wanted)
        return 0
    found = STUB.read_text() if STUB.exists() else ""
    lines = difflib.unified_diff(
        found.splitlines(), wanted.splitlines(), "_core.pyi", "what the module has", lineterm=""
    )
    print("\n".join(lines) if found != wanted else "_core.pyi matches the module")
    return int(found != wanted)


if __name__ == "__main__":
    sys.exit(main())
