"""`COLLECTIVES_ALGORITHM`: algorithms in place of those that would be chosen."""

from __future__ import annotations

import collectives
import numpy as np
import pytest
from collectives._startup.environment import read_overrides
from collectives._startup.overrides import Override, parse
from joining import job


def test_ranges():
    assert parse("all_reduce:0-4k=one_shot,4K-=ring;broadcast:8-1m=tree; barrier:0-=one_shot") == [
        Override("all_reduce", 0, 4096, "one_shot"),
        Override("all_reduce", 4096, 1 << 62, "ring"),
        Override("broadcast", 8, 1 << 20, "tree"),
        Override("barrier", 0, 1 << 62, "one_shot"),
    ]
    assert read_overrides({}) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ring", "'ring' has no collective and colon"),
        ("allreduce:0-=ring", "there is no collective 'allreduce'"),
        ("all_reduce:", "'' cannot be read"),
        ("all_reduce:ring", "'ring' cannot be read"),
        ("all_reduce:0-4q=ring", "'0-4q=ring' cannot be read"),
        ("all_reduce:0-4k=one_shot,4k=ring", "'4k=ring' cannot be read"),
        ("all_reduce:4k-4k=ring", "'4k-4k=ring' is a range of no sizes"),
        ("all_reduce:9223372036854775808-=ring", "is a range of no sizes"),
        ("all_reduce:0-=rings", "'0-=rings' names no algorithm of all_reduce; it has "),
        ("broadcast:0-=tree;", "'' has no collective and colon"),
    ],
)
def test_what_cannot_be_read_is_quoted(text, part):
    with pytest.raises(ValueError, match=r"^COLLECTIVES_ALGORITHM is ") as caught:
        read_overrides({"COLLECTIVES_ALGORITHM": text})
    assert repr(text) in str(caught.value)
    assert part in str(caught.value)


def taken(comm, other, nbytes):
    """The algorithm that a call ran, by the word of its handle."""
    x = np.ones(nbytes // 4, np.float32)
    works = [c.all_reduce(x.copy(), async_op=True) for c in (comm, other)]
    for work in works:
        work.wait()
    return works[0].algorithm


def test_calls_take_what_is_asked_for_where_it_can_be_used(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "all_reduce:0-4k=ring,8k-16k=hierarchical,8k-16k=two_shot")
    a, b = collectives.local_group(2)
    with a, b:
        assert [taken(a, b, nbytes) for nbytes in (8, 4092, 4096)] == ["ring", "ring", "one_shot"]
        assert taken(a, b, 8192) == "two_shot"  # hierarchical needs several hosts
        found = a.explain("all_reduce", nbytes=8)
        assert found.chosen == found.override == "ring"
        assert str(found).count("chosen by COLLECTIVES_ALGORITHM") == 1
        assert a.explain("all_reduce", nbytes=4096).override == ""
        x = np.ones(2, np.float32)
        works = [c.all_reduce(x.copy(), async_op=True, deterministic=True) for c in (a, b)]
        assert [work.result().tolist() for work in works] == [[2, 2], [2, 2]]
        assert works[0].algorithm != "ring"  # whose order of additions depends on the size


def test_ranks_must_ask_for_the_same():
    with job(2, algorithm=["all_reduce:0-=ring", ""]) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "MismatchError"
            assert "rank 0 was started with algorithm 'all_reduce:0-=ring' and rank 1 with ''" in report["text"]
            assert report["text"].endswith("give every rank the same COLLECTIVES_ALGORITHM")
