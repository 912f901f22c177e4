"""The reports of `pytest --junit-xml`, read in one place."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    """One test of a report.

    Attributes:
        file: of the test, from the root; "" for an error that belongs to no file.
        node: the id that pytest prints.
        seconds: with its fixtures.
        element: what the report has of it.
    """

    file: str
    node: str
    seconds: float
    element: ET.Element

    def failure(self) -> str | None:
        """The first line of pytest about a failure or an error, None where there is none."""
        for kind in ("failure", "error"):
            if (found := self.element.find(kind)) is not None:
                return found.get("message", "")
        return None


def cases(report: Path) -> Iterator[Case]:
    """All tests of a report, also those that were skipped."""
    for element in ET.parse(report).iter("testcase"):
        words = (element.get("classname") or "").split(".")
        classes = [word for word in words if word.startswith("Test")]
        module = "/".join(word for word in words if word not in classes)
        file = f"{module}.py" if module else ""
        node = "::".join([*([file] if file else []), *classes, element.get("name") or ""])
        yield Case(file, node, float(element.get("time") or 0), element)
