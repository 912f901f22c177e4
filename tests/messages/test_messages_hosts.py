"""Messages where ranks are on two hosts: shared memory inside a host and TCP across, by themselves."""

from __future__ import annotations

import json

import pytest
from namespaces import REASON, run_program
from paths import python_path

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

LIMIT = 60  # seconds

PROGRAM = """
import json, sys
import numpy as np
import collectives
sys.path[:] = sys.argv[1].split(":")
from test_messages import SIZES, every_pair, out_of_order, ring
from test_messages_any import from_all, posted_first, tags_and_groups
from test_messages_failures import leave
from test_messages_flow import AHEAD, blocked_sender, on_groups, threads, traffic, unexpected
from test_messages_own import all_of_it
from test_probe import facts, unknown_lengths
from test_sendrecv import ring as exchange

comm = collectives.init()
every_pair(comm)
ring(comm, SIZES)
out_of_order(comm, [0, 100, 70_000, 300_000], 3)
traffic(comm, 7)
on_groups(comm)
threads(comm, 20)
exchange(comm)
from_all(comm, [8, 70_000, 300_000], 5)
posted_first(comm, 3, 20)
tags_and_groups(comm)
all_of_it(comm)
facts(comm)
unknown_lengths(comm)
before = comm.bytes_by_transport()
for peer in range(comm.size):
    if peer != comm.rank:
        comm.send(np.zeros(1000, np.uint8), peer)
for peer in range(comm.size):
    if peer != comm.rank:
        comm.recv(np.zeros(1000, np.uint8), peer)
after = comm.bytes_by_transport()
carried = {transport: after[transport] - before[transport] for transport in after}
ahead = unexpected(comm, 2500)
sent = blocked_sender(comm, 2500)
leave(comm, 5)
comm.close()
print(json.dumps({"carried": carried, "ahead": [ahead, sent] if comm.rank == 0 else []}))
"""


@pytest.mark.parametrize("places", [[0, 1], [0, 0, 1, 1], [0, 1, 1, 0, 1]])
def test_messages(hosts, places):  # type: ignore[no-untyped-def]
    ranks = run_program(hosts, places, PROGRAM, python_path(), limit=LIMIT)
    for rank in ranks:
        assert rank.returncode == 0, rank.errors
    reports = [json.loads(rank.out) for rank in ranks]
    assert reports[0]["ahead"] == [2048, 2048]
    for place, report in zip(places, reports, strict=True):
        near = places.count(place) - 1
        expected = {"shm": 1000 * near, "tcp": 1000 * (len(places) - 1 - near)}
        assert {t: b for t, b in report["carried"].items() if b} == {t: b for t, b in expected.items() if b}
