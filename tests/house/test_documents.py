"""The documents: their sizes, their links, and that each of their figures has a row in bench/results/figures.csv.

A figure, in a page outside blocks of code and inline code, is

- a number before a unit of UNITS: "28 us", "2 to 5 ms", "635 and 800 us", "35 %";
- a number with a comma before its thousands, or with two or three decimals, which is a ratio;
- each number in a cell of a table that has nothing else but signs, units and names of libraries.

Each must stand, as it is printed, in a row of that page: in its n, median, p99, ratio or others, and before a unit in a
row of that unit ("%" and "times" are ratios). No figures are: values that were chosen, such as deadlines, which are
phrases of CHOSEN; columns of tables under a heading of HEADINGS, which say what was asked for; versions (VERSIONS). The
entries of the laboratory (docs/lab/) carry their own figures and have no rows.
"""

from __future__ import annotations

import csv
import functools
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT

DOCS = ROOT / "docs"
FIGURES = ROOT / "bench" / "results" / "figures.csv"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PAGES = [path for path in DOCUMENTS if path.parent.name != "lab"]  # whose figures have rows
IN_CHECKOUT = (ROOT / ".git").exists()
OUTSIDE_SDIST = re.compile(r"docs/lab(/|$)|\.png$")  # what the sdist leaves out, see tests/house/test_sdist.py

UNITS = ("ns", "us", "ms", "s", "minutes", "GB/s", "%", "times")
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
WITH_UNIT = re.compile(rf"(?<![\w.,#-])({NUMBER}(?:(?:, | to | and | or |-){NUMBER})*) ({'|'.join(UNITS)})(?![\w/])")
BARE = re.compile(r"(?<![\w.,])(\d+(?:,\d{3})+(?:\.\d+)?|\d+\.\d{2,3})(?![\w.]*\d)")
LIBRARIES = ("impi", "openmpi", "openmpi_debian", "mpich", "oneccl", "gloo")
HEADINGS = {"station", "size", "N", "each", "accepted", "default", "lower bound, and why"}

VERSIONS = re.compile(
    r"(?:Linux|Python|NumPy|PyTorch|TensorFlow|Keras|JAX|CuPy|NCCL|CUDA|OpenMPI|ml_dtypes|g\+\+|nvcc|driver|DLPack|version)"
    r" \d[\d.]*(?: (?:or|and) \d[\d.]*)?"
)
# Page: what is no measurement there.
CHOSEN = {
    "design": [
        "it looks 100 times first; but 6 times where",
        "15 minutes by default",
        "2.14 is the least version",
        "2.16 and later",
        "looks every 5 ms",
    ],
    "reliability": [
        "at least 0.5 s, at most 5 s",
        "a warning on stderr after 60 s",
        "else 600 s",
        "counts as late after 1 s, and as failed after 5 s",
        "the only one above 1 s",
        "stopped, deadline 6 s",
        "stopped, deadline 4 s",
        "one run of 600 s",
        "was ready within 60 s",
    ],
    "running": ["Ranks wait for each other for 300 s"],
    "security": [
        "has 10 s in all",
        "another every 0.25 s",
        "sends 10,000 of them",
        "the ranks after 10,000",
        "after 1,000",
    ],
    "shrink": ["600 s by default"],
    "testing": [
        "three minutes for a change",
        "no test begins after 150 s",
        "may take 31 minutes",
        "pass 10 times beside",
    ],
    "verification": ["sleeps end after 5 ms", "CI sends 8,000"],
}


def plain(path: Path) -> str:
    """The text of a document without code, comments and what is made of rows; of links, what is shown."""
    text = re.sub(r"^```.*?^```\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!-- bench/(?:figures|chart)\.py.*?<!-- end -->|<!--.*?-->|`[^`]*`", "", text, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def without_settings(text: str) -> str:
    """The text, with empty cells in the columns that say what was asked for."""

    def emptied(table: re.Match[str]) -> str:
        lines = [line.strip().removeprefix("|").removesuffix("|").split("|") for line in table[0].splitlines()]
        asked = [heading.strip() in HEADINGS for heading in lines[0]]
        kept = [[cell for cell, no in zip(line, asked, strict=False) if not no] for line in lines]
        return "".join(f"| {'|'.join(line)} |\n" for line in kept)

    return re.sub(r"(?:^\|.*\n)+", emptied, text, flags=re.MULTILINE)


def cells_of_figures(text: str) -> Iterator[str]:
    """The cells of tables that have nothing but figures."""
    names = "|".join(sorted(LIBRARIES, key=len, reverse=True))
    only = re.compile(rf"(?:{NUMBER}|{names}|{'|'.join(UNITS)}|to|and|[\s;,()%*+-])+")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        for cell in table.replace("\n", "").split("|"):
            if re.search(r"\d", cell) and only.fullmatch(cell):
                yield cell


def figures_of(path: Path) -> set[tuple[str, str]]:
    """(number, unit) of every figure of a page; the unit is "" where none follows."""
    text = without_settings(plain(path))
    for phrase in CHOSEN.get(path.stem, []):
        text = re.sub(r"\s+".join(map(re.escape, phrase.split())), " ", text)
    cells = " | ".join(cells_of_figures(text))
    found = set()
    for part in (cells, re.sub(r"\s+", " ", VERSIONS.sub("", text))):
        for numbers, unit in WITH_UNIT.findall(part):
            found |= {(number, unit) for number in numbers_in(numbers)}
    found |= {(number, "") for number in numbers_in(WITH_UNIT.sub("", cells))}
    return found | {(number.replace(",", ""), "") for number in BARE.findall(WITH_UNIT.sub("", part))}


def numbers_in(text: str) -> list[str]:
    return [number.replace(",", "") for number in re.findall(NUMBER, text)]


@functools.cache
def rows() -> list[dict[str, str]]:
    with FIGURES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def known(page: str, unit: str) -> frozenset[str]:
    """The numbers that rows of the page have, of a unit or of all.

    Rows of the suite, which alone have a transport there, do not count for the page that is made of them: among so many
    numbers any would be found.
    """
    found: set[str] = set()
    for row in rows():
        if row["page"] == page and not (page == "performance" and row["transport"]):
            ratio = row["ratio"]
            texts = [row["others"], ratio]
            if unit in ("", row["unit"]):
                texts += [row["median"], row["p99"]]
            if unit == "":
                texts.append(row["n"])
            if unit == "%" and ratio:
                texts.append(f"{100 * float(ratio):.0f}")
            found |= {number for text in texts for number in numbers_in(text)}
    return frozenset(found)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_figure_has_a_row(path: Path) -> None:
    missing = {(number, unit) for number, unit in figures_of(path) if number not in known(path.stem, unit)}
    assert not missing, f"{path.name} has figures without a row in {FIGURES.name}: {sorted(missing)}"


def test_what_was_chosen_is_still_said() -> None:
    for page, phrases in CHOSEN.items():
        text = re.sub(r"\s+", " ", plain(DOCS / f"{page}.md"))
        gone = [phrase for phrase in phrases if phrase not in text]
        assert not gone, f"{page}.md does not say {gone} any more"


def test_the_reader_of_figures_sees_what_it_should(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "It takes 2 to 5 ms with Python 3.12, 1,002 at most, 1.30 times as long, `9 us`.\n\n```\n8 us\n```\n\n"
        "| size | ours | limit |\n| --- | --- | --- |\n| 7 | 0.421; **2.68 impi** | 35 % |\n| 6 | some 4 |  |\n"
    )
    assert figures_of(page) == {
        *(("2", "ms"), ("5", "ms"), ("1002", ""), ("1.30", "times")),
        *(("0.421", ""), ("2.68", ""), ("35", "%")),
    }


def test_rows_are_complete() -> None:
    machines = set(re.findall(r"^\| `([\w-]+)` \|", (DOCS / "performance.md").read_text(), re.MULTILINE))
    pages = {path.stem for path in PAGES}
    for row in rows():
        assert None not in row, f"too many cells: {row}"
        assert row["page"] in pages, row
        assert row["machine"] in machines, f"docs/performance.md does not say what this machine is: {row}"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), row
        assert row["what"], row
        assert row["command"] or row["others"] or row["median"], row
        assert bool(row["median"]) <= bool(row["unit"]), f"a median without a unit: {row}"
        assert bool(row["ratio"]) <= bool(row["against"]), f"a ratio without what it is over: {row}"
        for column in ("n", "bytes", "runs", "p99", "ratio"):
            assert not row[column] or re.fullmatch(NUMBER, row[column]), (column, row)


def test_tables_are_those_of_the_rows(bench_module: Callable[[str], ModuleType]) -> None:
    figures = bench_module("figures")
    page = figures.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"<!-- bench/figures\.py: (\w+) -->", page) == ["zen4", "zen5", "xeon"]
    assert figures.with_tables(page, figures.read(figures.FIGURES)) == page, "run: python bench/figures.py"
    assert all(f"]({name})" in page for name in figures.PICTURES.values())


def test_the_chart_is_that_of_the_rows(bench_module: Callable[[str], ModuleType]) -> None:
    chart = bench_module("chart")
    page = chart.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- bench/chart.py -->") == 1
    rows = chart.measured(bench_module("figures").read(FIGURES))
    assert chart.with_caption(page, rows) == page, "run: python bench/chart.py --plot"


def test_the_chart_is_drawn(bench_module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    chart = bench_module("chart")
    rows = chart.measured(bench_module("figures").read(FIGURES))
    for dark, path in chart.PICTURES.items():
        chart.draw(rows, tmp_path / path.name, dark=dark)
        assert (tmp_path / path.name).read_bytes().startswith(b"\x89PNG")


def test_nothing_grows_too_large() -> None:
    assert (DOCS / "performance.md").stat().st_size <= 15_000
    assert FIGURES.stat().st_size <= 200_000
    assert [path.name for path in FIGURES.parent.iterdir()] == [FIGURES.name], "raw results do not belong into the tree"
    assert sum(path.stat().st_size for path in DOCS.rglob("*.png")) <= 400_000
    for path in DOCS.glob("lab/*.md"):
        assert path.stat().st_size <= 25_000, f"{path.name}: begin another page"
    if IN_CHECKOUT:
        command = ["git", "-C", ROOT, "ls-files", "-z"]
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        files = [ROOT / name for name in tracked if name and (ROOT / name).is_file()]
        assert sum(path.stat().st_size for path in files) < 6_500_000


def anchors(path: Path) -> set[str]:
    """What a link may name behind #, as GitHub makes it from the headings."""
    text = re.sub(r"^```.*?^```\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(next(name for i in itertools.count() if (name := f"{slug}-{i}" if i else slug) not in found))
    return found


def links(path: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of each link of a document to a file of ours."""
    text = re.sub(r"^```.*?^```\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\b(?:src|srcset|href)="([^"]+)"', text)
    targets = [link.partition("#") for link in found if "://" not in link]
    return [((path.parent / target).resolve() if target else path, anchor) for target, _, anchor in targets]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_work(path: Path) -> None:
    broken = []
    for target, anchor in links(path):
        inside = target.is_relative_to(ROOT)
        if inside and not IN_CHECKOUT and OUTSIDE_SDIST.search(target.relative_to(ROOT).as_posix()):
            continue
        if not inside or not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{target}#{anchor}")
    assert not broken, f"{path.name} links to {broken}"


def test_the_index_leads_to_every_page() -> None:
    linked = {target for target, _ in links(DOCS / "index.md")}
    assert linked >= {ROOT / "README.md", *DOCS.glob("*.md")} - {DOCS / "index.md"}
    assert DOCS / "index.md" in {target for target, _ in links(ROOT / "README.md")}
    if IN_CHECKOUT:
        assert DOCS / "lab" / "index.md" in linked
        listed = {target for target, _ in links(DOCS / "lab" / "index.md")}
        assert listed >= set(DOCS.glob("lab/*.md")) - {DOCS / "lab" / "index.md"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_documents_mention_exists(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    folders = [p.name for p in ROOT.iterdir() if p.is_dir() and (p.name == ".ci" or not p.name.startswith("."))]
    missing = set()
    for mention in re.findall(rf"`((?:{'|'.join(map(re.escape, folders))})/[^`\s]*)`", text):
        made = mention.startswith("build/")
        placeholder = "<" in mention
        if not made and not placeholder and not list(ROOT.glob(mention.partition("::")[0].rstrip("/"))):
            missing.add(mention)
    assert not missing, f"{path.name} mentions {sorted(missing)}"


def test_entries_of_the_laboratory_are_complete() -> None:
    entries = [entry for path in DOCS.glob("lab/[!i]*.md") for entry in path.read_text().split("\n## ")[1:]]
    assert len(entries) > 50 or not IN_CHECKOUT
    listed = (DOCS / "lab" / "index.md").read_text() if entries else ""
    for entry in entries:
        name = entry.partition("\n")[0]
        assert re.search(r"^\*[^*\n]*\b20\d\d-\d\d-\d\d", entry, re.MULTILINE), f"{name}: no date in italics"
        assert "**Question.**" in entry, f"{name}: no question"
        assert "**Verdict" in entry or "| verdict |" in entry, f"{name}: no verdict"
        assert re.search(rf"^\| \| {re.escape(name)} \| [^|]+ \|$", listed, re.MULTILINE), f"{name}: not in the index"


def test_what_sources_mention_of_documents_and_tests_exists() -> None:
    folders = ("bench", "csrc", "examples", "python", "tools")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".cc", ".h", ".cu", ".cuh", ".c", ".txt"):
            for mention in re.findall(r"\b(?:docs|tests)/[\w./-]*\w", path.read_text(encoding="utf-8")):
                known_here = IN_CHECKOUT or not OUTSIDE_SDIST.search(mention)
                assert not known_here or (ROOT / mention).exists(), f"{path.relative_to(ROOT)} mentions {mention}"


STATION = re.compile(r"^\| (.+?) \| `([\w/.]+)` \| `(\w+)` \|", re.MULTILINE)


def test_the_walk_goes_where_something_is() -> None:
    """Each station is a function that its file defines."""
    text = (DOCS / "walk.md").read_text(encoding="utf-8")
    first, again, off = (STATION.findall(part) for part in text.split("\n## ")[1:])
    assert 8 <= len(first) <= 12 and 4 <= len(again) <= 6 and off
    for _, file, function in [*first, *again, *off]:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^[^/\n]*\b{function}\([^;]*$", source, re.MULTILINE), f"{file} has no function {function}"
