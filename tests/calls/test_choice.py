"""`Communicator.explain`: candidates, predicted times and the winner."""

from __future__ import annotations

import collectives
import namespaces
import pytest


def test_the_first_candidate_is_what_auto_takes():
    a, b = collectives.local_group(2)
    with a, b:
        found = a.explain("all_reduce", nbytes=8)
        assert found.chosen == found.candidates[0].algorithm == "one_shot"
        assert [c.us for c in found.candidates if c.us is not None] == sorted(c.us for c in found.candidates if c.us)
        assert next(c for c in found.candidates if c.algorithm == "hierarchical").us is None
        text = str(found).splitlines()
        assert text[0] == "all_reduce of 8 bytes; by the formula of each algorithm"
        assert text[2].split()[0] == "one_shot"
        assert text[2].endswith("chosen")
        assert "it needs ranks on several hosts" in text[-1]


def test_a_world_of_one_has_nothing_to_choose_between():
    (alone,) = collectives.local_group(1)
    with alone:
        for collective in ("all_reduce", "all_to_all", "barrier", "scan"):
            found = alone.explain(collective, nbytes=1 << 20)
            assert str(found).startswith(f"{collective} of 1048576 bytes; there is no other rank")
            assert found.chosen


def test_arguments():
    a, b = collectives.local_group(2)
    with a, b:
        with pytest.raises(ValueError, match="collective is 'allreduce'; accepted are all_reduce"):
            a.explain("allreduce", nbytes=8)
        with pytest.raises(ValueError, match="nbytes is -1"):
            a.explain("all_reduce", nbytes=-1)
        with pytest.raises(TypeError):
            a.explain("all_reduce", nbytes="8")
        with pytest.raises(ValueError, match="root 2 is out of range"):
            a.explain("reduce", nbytes=8, root=2)


PROGRAM = """if True:
    import collectives
    import numpy as np
    comm = collectives.init()
    found = comm.explain("all_reduce", nbytes=1 << 20)
    if comm.rank == 0:
        print(found)
    x = np.full(1 << 18, comm.rank + 1, np.float32)
    comm.all_reduce(x)
    assert (x == comm.size * (comm.size + 1) / 2).all()
    names = comm.all_gather_object([found.chosen, *(c.us for c in found.candidates)])
    assert all(name == names[0] for name in names), names
    comm.close()
"""


@pytest.mark.skipif(namespaces.REASON is not None, reason=str(namespaces.REASON))
def test_between_hosts_all_ranks_find_the_same(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_NETWORK", "1G,50us")
    with namespaces.two_hosts() as hosts:
        ended = namespaces.run_program(hosts, [0, 0, 1, 1], PROGRAM)
    assert [rank.returncode for rank in ended] == [0] * 4, [rank.errors for rank in ended]
    title, head, first, *_ = ended[0].out.splitlines()
    assert (
        title == "all_reduce of 1048576 bytes; simulated with ports of 1 Gbit/s for each host and 50 us between hosts"
    )
    assert head.split() == ["algorithm", "predicted", "wire", "processor", "waiting"]
    assert first.endswith("chosen")
