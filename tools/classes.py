"""Where each class of csrc/ is declared, and in which files its member functions are defined.

    python tools/classes.py           the classes whose functions are in two sources or more
    python tools/classes.py NAME ...  those whose qualified names end so

It reads the text, without a compiler: namespaces, classes (also nested and in templates), and what is defined at
namespace level with the name of a class in front. What is inside functions is not looked at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rooms import CSRC, SOURCES

HEADERS = (".h", ".cuh")

_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/                                # comments
      |R"(?P<end>[^\s()\\]*)\(.*?\)(?P=end)"              # raw strings
      |"(?:[^"\\\n]|\\.)*"                                # strings
      |(?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.[^']*)'            # characters, but not the ' of 1'000
      |^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*                     # lines of the preprocessor
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    r"\[\[.*?\]\]|\b(?:alignas|decltype|__attribute__|__launch_bounds__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_NAMESPACE = re.compile(r"\bnamespace\b\s*((?:\w|::)*)$")
_CLASS = re.compile(
    r"(?<!enum )\b(?:class|struct|union)\s+((?:\w|::)+(?:<.*>)?)\s*(?:\bfinal\b\s*)?(?::(?!:).*)?$", re.DOTALL
)
_UNNAMED = re.compile(r"\b(?:class|struct|union)$")
_MEMBER = re.compile(r"((?:\w+\s*::\s*)+)(~?\w+|operator\b.*)$", re.DOTALL)


@dataclass
class Declared:
    """What the text says of one class: names of files."""

    declared: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)  # some member function, outside of the class

    @property
    def headers(self) -> set[str]:
        return {path for path in self.declared | self.defined if path.endswith(HEADERS)}

    @property
    def sources(self) -> set[str]:
        return {path for path in self.declared | self.defined if not path.endswith(HEADERS)}


def _plain(text: str) -> str:
    """The text without comments and lines of the preprocessor, and with empty literals."""
    return _LITERAL.sub(lambda m: '""' if m[0][0] in "\"'R" else " ", text)


def _without_arguments(text: str) -> str:
    """`Name<T>::f` as `Name::f`; comparisons and shifts do not occur where it is used."""
    while (shorter := re.sub(r"(?<!operator)(?<=[\w\s])<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def _member(head: str) -> tuple[str, str] | None:
    """(class as written, function) when a definition that begins so has a qualified name."""
    depth = 0
    for at, character in enumerate(head):
        if character == "(":
            if depth == 0 and (found := _MEMBER.search(_without_arguments(head[:at]).rstrip())):
                return re.sub(r"\s|::\s*$", "", found[1]), found[2].strip()
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "=" and depth == 0 and not re.search(r"operator\W*$", head[:at]):
            return None  # a variable
    return None


@dataclass(frozen=True)
class _Scope:
    kind: str  # namespace, class
    name: str


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    """What the text has, in order.

    ("namespace", qualified name, ""), ("class", qualified name, ""), ("member", class as written, the namespace around)
    """
    plain = _ATTRIBUTE.sub(" ", _plain(text))
    scopes: list[_Scope] = []
    head, at, parentheses = "", 0, 0
    while at < len(plain):
        character = plain[at]
        at += 1
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character not in "{};" or (character != "}" and parentheses > 0):
            head += character
            if character == "{":  # in the arguments of something
                at = _behind(plain, at)
            continue
        around = "::".join(scope.name for scope in scopes if scope.name)
        in_class = any(scope.kind == "class" for scope in scopes)
        head = head.strip()
        if character == "}":
            if not scopes:
                raise ValueError("more braces are closed than opened")
            scopes.pop()
        elif character == ";":
            if not in_class and re.search(r"=\s*default$", head) and (member := _member(head.rpartition("=")[0])):
                yield "member", member[0], around
        elif (found := _NAMESPACE.search(head)) is not None:
            scopes.append(_Scope("namespace", found[1] or "(unnamed)"))
            yield "namespace", "::".join(scope.name for scope in scopes), ""
        elif re.fullmatch(r'extern\s*""', head):
            scopes.append(_Scope("namespace", ""))
        elif (found := _CLASS.search(head)) is not None:
            scopes.append(_Scope("class", re.sub(r"\s", "", found[1])))
            yield "class", "::".join(scope.name for scope in scopes if scope.name), ""
        elif _UNNAMED.search(head):
            scopes.append(_Scope("class", ""))
        else:
            if not in_class and (member := _member(head)):
                yield "member", member[0], around
            at = _behind(plain, at)
            if re.search(r":\s*\w+(?:<.*>)?$|,\s*\w+(?:<.*>)?$", head):  # `: member_{1}`, or a base, before the body
                head = ","
                continue
        head = ""
    if scopes:
        raise ValueError("more braces are opened than closed")


def _behind(text: str, at: int) -> int:
    """The place behind the brace that closes the one before `at`."""
    depth = 1
    while depth > 0:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def classes(texts: Mapping[str, str]) -> dict[str, Declared]:
    """All classes by qualified name. What is in an unnamed namespace has the name of its file in front."""
    found: dict[str, Declared] = {}
    namespaces: set[str] = set()
    members: list[tuple[str, str, str]] = []
    for path, text in texts.items():
        try:
            parts = list(_parts(text))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        for kind, written, around in parts:
            own = f"(in {path})"
            if kind == "namespace":
                namespaces.add(written.replace("(unnamed)", own))
            elif kind == "class":
                found.setdefault(written.replace("(unnamed)", own), Declared()).declared.add(path)
            else:
                members.append((path, written, around.replace("(unnamed)", own)))
    for path, written, around in members:
        name = _resolve(written, around, found.keys(), path)
        if name is None:
            if _resolve(written, around, namespaces, path) is None:
                raise ValueError(f"{path} defines functions of {written}, of which no declaration was found")
            continue  # a function that is no member
        while name in found:  # a nested class is a part of the one around it
            found[name].defined.add(path)
            name = name.rpartition("::")[0]
    return found


def _resolve(written: str, around: str, known: Iterable[str], path: str) -> str | None:
    """The innermost of the known names that `written` may mean in the namespace `around`."""
    names = set(known)
    scope = around.split("::") if around else []
    for length in range(len(scope), -1, -1):
        prefix = scope[:length]
        for inner in ([], [f"(in {path})"]):
            name = "::".join([*prefix, *inner, written])
            if name in names:
                return name
    return None


def classes_of_the_tree() -> dict[str, Declared]:
    """Of csrc/. Names of csrc/cuda/ have that in front: it is a library of its own, and no other room sees them."""
    texts = {path.relative_to(CSRC.parent).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES}
    cuda = {path: texts.pop(path) for path in list(texts) if path.startswith("csrc/cuda/")}
    return classes(texts) | {f"(cuda) {name}": where for name, where in classes(cuda).items()}


def main() -> int:
    wanted = sys.argv[1:]
    for name, where in sorted(classes_of_the_tree().items()):
        if any(name.endswith(end) for end in wanted) if wanted else len(where.sources) > 1:
            print(name, *sorted(where.headers), *sorted(where.sources))
    return 0


if __name__ == "__main__":
    sys.exit(main())
