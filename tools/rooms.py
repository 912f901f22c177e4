"""Which room of csrc/ includes which, and the picture of that in docs/index.md.

    python tools/rooms.py           writes the picture
    python tools/rooms.py --check   fails when the picture is not what this would write

A room is a folder with one subject. Folders of engine/ and bindings/ are parts of one room.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
PAGE = ROOT / "docs" / "index.md"
ONE_ROOM = ("engine", "bindings")
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cc", ".cu", ".cuh"))
BEGIN, END = "<!-- Written by tools/rooms.py; do not edit. -->", "<!-- End of what tools/rooms.py writes. -->"


def room(path: str) -> str:
    """The room of a file, by its path below csrc/."""
    folder = path.rpartition("/")[0]
    return folder.split("/")[0] if folder.split("/")[0] in ONE_ROOM else folder


def own_includes(source: str) -> list[tuple[str, str]]:
    """(what is included, its room) for every include of a file of ours; the room is "" for a relative path."""
    present = {path.name for path in CSRC.iterdir() if path.is_dir()}
    result = []
    for quoted, angled in re.findall(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', source, re.MULTILINE):
        path = quoted or angled
        if "/" in path and path.split("/")[0] in present:
            result.append((path, room(path)))
        elif ".." in path:
            result.append((path, ""))
    return result


def arrows() -> dict[str, set[str]]:
    """For each room, the others that its files include."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        own = room(path.relative_to(CSRC).as_posix())
        found.setdefault(own, set()).update(target for _, target in own_includes(path.read_text(encoding="utf-8")))
    return {own: targets - {own} for own, targets in sorted(found.items())}


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Removes arrows that others imply, so that the essential ones are visible."""

    def reach(name: str) -> set[str]:
        return graph[name].union(*(reach(other) for other in graph[name])) if graph[name] else set()

    return {
        name: {other for other in others if not any(other in reach(third) for third in others - {other})}
        for name, others in graph.items()
    }


def picture() -> str:
    """The graph of the rooms, as Markdown that GitHub and others draw."""
    lines = [BEGIN, "```mermaid", "flowchart TD"]
    lines += [
        '  python["python/collectives"] --> bindings',
        '  doors["python/collectives/tensorflow"] --> python',
        "  doors --> bindings",
    ]
    graph: dict[str, set[str]] = {}
    for own, targets in arrows().items():  # a transport is a folder that nothing else names
        graph.setdefault(_shown(own), set()).update({_shown(target) for target in targets} - {_shown(own)})
    for own, targets in reduced(graph).items():
        lines += [f'  {_id(own)}["{own}"] --> {_id(target)}["{target}"]' for target in sorted(targets)]
    return "\n".join([*lines, "```", END])


def _shown(name: str) -> str:
    return "transports/NAME" if name.startswith("transports/") else name


def _id(name: str) -> str:
    return name.replace("/", "_")


def main() -> int:
    """Writes or checks the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="fail when the picture is not up to date")
    arguments = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    if not found or END not in rest:
        parser.error(f"{PAGE.relative_to(ROOT)} has no place for the picture")
    wanted = before + picture() + after
    if arguments.check and wanted != text:
        print("the picture in docs/index.md is not that of the include lines: python tools/rooms.py")
        return 1
    if not arguments.check:
        PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
