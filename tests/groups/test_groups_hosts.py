"""Groups where ranks are on two hosts: groups inside a host, groups across, and both kinds at once."""

import json

import pytest
from namespaces import REASON, run_program
from paths import python_path

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

LIMIT = 60  # seconds

PROGRAM = """
import json, os, signal, sys, time
import numpy as np
import collectives
sys.path[:] = sys.argv[1].split(":")
from test_groups import check, hammer, many_in_flight
from test_groups_failures import all_close

places = json.loads(sys.argv[2])
comm = collectives.init()
me, n = comm.rank, comm.size
report = {"local": {}, "carried": {}}

host = comm.split(places[me], -me)
same = [r for r in range(n) if places[r] == places[me]]
position = same.index(me)
across = comm.split(position, places[me])  # one rank of each host, as far as there are
backwards = comm.split(0, -me)
pair = comm.new_group([n - 1, 0])
few = list(range(n))[::-2]  # without the others
alone = comm.new_group(few, members_only=True) if me in few else None
for name, group, members in (
    ("host", host, same[::-1]),
    ("across", across, [r for r in sorted(range(n), key=lambda r: (places[r], r))
                        if [q for q in range(n) if places[q] == places[r]].index(r) == position]),
    ("backwards", backwards, list(range(n))[::-1]),
    ("pair", pair, [n - 1, 0]),
    ("alone", alone, few),
):
    if group is not None:
        check(group, members, me)
        report["local"][name] = [sum(places[r] == places[me] for r in members), group.local_size]
        report["carried"][name] = sorted(t for t, count in group.bytes_by_transport().items() if count)
x = host.empty(100_000, np.int64)
x[...] = me
host.all_reduce(x)
assert (x == sum(same)).all()
y = backwards.empty(100_000, np.int64)  # ordinary memory
y[...] = me
assert (backwards.all_reduce(y, algorithm="hierarchical") == n * (n - 1) // 2).all()

many_in_flight(comm, 5)
hammer(comm, 30)
all_close(comm)

# A rank leaves a group that spans the hosts; the others get the error, and everything else goes on.
if me == n - 1:
    backwards.close()
else:
    try:
        backwards.barrier(timeout=30)
        raise SystemExit("no error")
    except collectives.PeerError as error:
        assert error.peer == 0 and "has left the group" in str(error), error
assert comm.all_reduce(np.ones(10))[0] == n

# The last rank dies: groups inside the other host go on.
comm.barrier()
if me == n - 1:
    time.sleep(0.2)  # the instant, not a wait for something
    os.kill(os.getpid(), signal.SIGKILL)
began = time.monotonic()
try:
    while True:
        comm.all_reduce(np.ones(1000))
except collectives.PeerError as error:
    assert error.peer == n - 1, error
    assert time.monotonic() - began < 15  # the deadline is 60
if places[me] != places[n - 1]:
    assert host.all_reduce(np.ones(1000))[0] == len(same)
    with host.split(host.rank % 2) as part:
        part.barrier()
else:
    try:
        host.barrier()
        raise SystemExit("no error")
    except collectives.PeerError as error:
        assert error.peer == 0 and f"rank 0 (world rank {n - 1}, " in str(error), error
print(json.dumps(report))
"""


@pytest.mark.parametrize("places", [[0, 1], [0, 0, 1, 1], [0, 1, 1, 0, 1]])
def test_groups(hosts, places):
    ranks = run_program(hosts, places, PROGRAM, python_path(), json.dumps(places), limit=LIMIT)
    for rank in ranks[:-1]:
        assert rank.returncode == 0, rank.errors
        report = json.loads(rank.out)
        for name, (expected, local_size) in report["local"].items():
            assert local_size == expected, name
        for name, transports in report["carried"].items():
            expected, _ = report["local"][name]
            assert ("shm" in transports) == (expected > 1), report
        assert report["carried"]["backwards"][-1] == "tcp"
        assert "tcp" not in report["carried"]["host"]
