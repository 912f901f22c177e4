"""The orders of the words that ranks share, by the kinds that memory/domain.h gives them.

On x86 a release or an acquire that was weakened does no harm that any run could show, so the sources are read.
docs/verification.md has the argument that each order is part of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from paths import ROOT

CSRC = ROOT / "csrc"

# Publications and notices that guard other memory: written by release, read by acquire.
PUBLISHED = {
    *(
        "word",
        "value",
        "completed",
        "left",
        "communicator",
        "aborted",
        "report_bytes",
        "edition",
        "copies",
        "probe",
    ),
}
# Counts and hints, which guard nothing, and the sleeper flag, which has a fence: relaxed.
RELAXED = {"opened", "core", "caller", "explained", "sleeping"}

# By other names: what flag_latency.cc measures with, and the words that places of flags lead to.
ALIASES = {
    "csrc/engine/flag_latency.cc": {"mine": "probe", "theirs": "probe"},
    "csrc/engine/failure/explain.cc": {"word": "explained"},
}

# Accesses of other kinds. Only this rank writes the word, or has just read it by acquire.
OWN = {
    ("csrc/engine/flag_latency.cc", "probe.load(relaxed)"),
    ("csrc/memory/domain.h", "edition.load(relaxed)"),
    ("csrc/memory/host_memory.cc", "left.compare_exchange_strong(release, relaxed)"),
    ("csrc/engine/failure/explain.cc", "explained.compare_exchange_weak(relaxed)"),
    ("csrc/memory/host_memory.cc", "sleeping.exchange(seq_cst)"),  # for ThreadSanitizer, which knows no fences
}

ACCESS = re.compile(
    r"(\w+)(?:\[[^\]]*\])*(?:\([^()]*\))?(?:\.|->)(load|store|exchange|fetch_\w+|compare_exchange_\w+)\("
)


def arguments(text: str, begin: int) -> str:
    """What stands between the parenthesis before `begin` and its counterpart."""
    depth, end = 1, begin
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[begin : end - 1]


def accesses(name: str, text: str) -> Iterator[tuple[str, str]]:
    """(word, access with its orders) of every atomic access to a word that ranks share."""
    text = re.sub(r"//[^\n]*", "", text)
    for found in ACCESS.finditer(text):
        word = ALIASES.get(name, {}).get(found[1], found[1])
        if word in PUBLISHED | RELAXED:
            orders = re.findall(r"memory_order_(\w+)", arguments(text, found.end()))
            yield word, f"{word}.{found[2]}({', '.join(orders)})"


def allowed(word: str) -> set[str]:
    if word in RELAXED:
        return {f"{word}.load(relaxed)", f"{word}.store(relaxed)"}
    return {f"{word}.load(acquire)", f"{word}.store(release)"}


SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in (".h", ".cc"))


def test_every_word_has_a_kind() -> None:
    text = (CSRC / "memory" / "domain.h").read_text()
    declared = set(re.findall(r"std::atomic<[\w:]+> (\w+)(?:\[\w+\])*;", text))
    assert declared == PUBLISHED | RELAXED


def test_each_access_has_the_order_of_its_kind() -> None:
    seen = set()
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        for word, access in accesses(name, path.read_text()):
            if (name, access) not in OWN:
                assert access in allowed(word), f"{name}: {access}; docs/verification.md says why not"
            seen.add((name, access))
    assert seen >= OWN, "what is allowed and not needed"
    both = {access for _, access in seen}
    for word in PUBLISHED:
        assert both >= allowed(word), f"{word} is not both published and read"


def test_a_weaker_order_is_seen() -> None:
    text = (
        "line.word.store((s + 1) << 8 | n, std::memory_order_relaxed);\n flag.word(b).load(std::memory_order_acquire);"
    )
    assert [access for _, access in accesses("x.cc", text)] == ["word.store(relaxed)", "word.load(acquire)"]
    assert "word.store(relaxed)" not in allowed("word")


@pytest.mark.parametrize(
    ("file", "function", "first", "second"),
    [
        # The flag of who falls asleep must not be passed by its last look.
        (
            "memory/host_memory.cc",
            "HostMemory::set_sleeping",
            "sleeping.store(",
            "std::atomic_thread_fence(std::memory_order_seq_cst)",
        ),
        # The notice of a failure comes before whatever the caller does with its arrays.
        ("engine/failure/failure_reports.cc", "FailureReports::publish", "aborted.store(", "full_fence()"),
        # Stores past the caches are ordered with no other, so a signal could come before them.
        ("cpu/streaming.h", "copy_streaming", "stream_line(", "_mm_sfence()"),
    ],
    ids=["sleeper", "notice", "streaming"],
)
def test_a_fence_is_where_it_must_be(file: str, function: str, first: str, second: str) -> None:
    text = (CSRC / file).read_text()
    body = text[text.index(f" {function}(") if "::" not in function else text.index(f"{function}(") :]
    body = body[: body.index("\n}\n")]
    assert body.index(first) < body.index(second)
