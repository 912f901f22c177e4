"""A group that spans hosts: every collective and algorithm, shared memory inside a host and TCP across, by itself."""

import json

import numpy as np
import pytest
from collectives import _core
from namespaces import REASON, run_program

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

LIMIT = 60  # seconds

PROGRAM = """
import hashlib, json, sys
import numpy as np
import collectives

comm = collectives.init()
report = {"rank": comm.rank, "local_size": comm.local_size, "wrong": [], "hashes": {}, "left_out": [], "parts": 0}
algorithms = json.loads(sys.argv[1])
total = comm.size * (comm.size + 1) // 2
for collective in ("all_reduce", "broadcast", "reduce", "scan", "exscan", "barrier"):
    for name in ["auto", *algorithms[collective]]:
        for count in (0, 1, 5, 1001, 300_007):
            for root in range(comm.size if collective in ("broadcast", "reduce") else 1):
                x = np.arange(count, dtype=np.float64) * (comm.rank + 1)
                expected = np.arange(count, dtype=np.float64) * total
                try:
                    if collective == "all_reduce":
                        comm.all_reduce(x, algorithm=name)
                    elif collective in ("scan", "exscan"):
                        getattr(comm, collective)(x, algorithm=name)
                        end = comm.rank + (collective == "scan")
                        expected = np.arange(count) * (end * (end + 1) / 2 if end else 1.0)
                    elif collective == "reduce":
                        comm.reduce(x, "sum", root, algorithm=name)
                        expected = expected if comm.rank == root else np.arange(count) * (comm.rank + 1.0)
                    elif collective == "broadcast":
                        comm.broadcast(x, root, algorithm=name)
                        expected = np.arange(count) * (root + 1.0)
                    else:
                        comm.barrier(algorithm=name)
                        expected = x
                except ValueError as error:
                    report["left_out"].append([collective, name, str(error)])
                    continue
                key = f"{collective} {name} {count} {root}"
                if not np.array_equal(x, expected):
                    report["wrong"].append(key)
                if collective in ("all_reduce", "broadcast"):
                    report["hashes"][key] = hashlib.sha256(x.tobytes()).hexdigest()
for collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
    # Parts of different lengths: rank i has i % 3 times the count, and one more.
    for name in ["auto", *algorithms[collective]]:
        for count in (0, 1, 1001, 100_003):
            for root in range(comm.size if collective in ("gather", "scatter") else 1):
                lengths = [r % 3 * count + 1 for r in range(comm.size)] if count else [0] * comm.size
                whole = np.arange(sum(lengths), dtype=np.float64)
                borders = np.concatenate([[0], np.cumsum(lengths)])
                part = slice(borders[comm.rank], borders[comm.rank + 1])
                if collective in ("all_gather", "gather"):
                    arguments = {"root": root} if collective == "gather" else {}
                    result = getattr(comm, collective)(whole[part], algorithm=name, **arguments)
                    expected = whole if collective == "all_gather" or comm.rank == root else None
                elif collective == "reduce_scatter":
                    result = comm.reduce_scatter(whole * (comm.rank + 1), counts=lengths, algorithm=name)
                    expected = whole[part] * total
                elif collective == "all_to_all":
                    result = comm.all_to_all(whole * (comm.rank + 1), counts=lengths, algorithm=name)
                    expected = np.concatenate([whole[part] * (r + 1) for r in range(comm.size)])
                else:
                    mine = whole if comm.rank == root else None
                    result = comm.scatter(mine, root, counts=lengths, algorithm=name)
                    expected = whole[part]
                if not (result is None if expected is None else np.array_equal(result, expected)):
                    report["wrong"].append(f"{collective} {name} {count} {root}")
                report["parts"] += 1
works = [comm.all_reduce(np.full(100 * i, 1.0, np.float32), async_op=True) for i in range(30)]
for i, work in reversed(list(enumerate(works))):
    if not (work.result() == comm.size).all():
        report["wrong"].append(f"asynchronous {i}")
report["bytes"] = comm.bytes_by_transport()
comm.close()
print(json.dumps(report))
"""


def names(collective):
    return [algorithm["name"] for algorithm in _core._algorithms(collective)]


@pytest.mark.parametrize("places", [[0, 1], [0, 0, 1, 1], [0, 1, 1, 0, 1]])
def test_every_algorithm(hosts, places, tmp_path):
    parts = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    algorithms = {
        kind: names(kind) for kind in ("all_reduce", "broadcast", "reduce", "scan", "exscan", "barrier", *parts)
    }
    ranks = run_program(hosts, places, PROGRAM, json.dumps(algorithms), limit=LIMIT)
    for rank in ranks:
        assert rank.returncode == 0, rank.errors
    reports = [json.loads(rank.out) for rank in ranks]
    for rank, report in enumerate(reports):
        assert report["rank"] == rank
        assert report["local_size"] == places.count(places[rank])
        assert report["wrong"] == []
        assert report["hashes"] == reports[0]["hashes"]
        # Only what needs memory that all ranks map, or short arrays, may be left out here, and it says so.
        assert all("mapped" in reason or "at most" in reason for _, _, reason in report["left_out"])
        carried = {transport for transport, count in report["bytes"].items() if count > 0}
        assert "tcp" in carried
        assert ("shm" in carried) == (report["local_size"] > 1)
    hierarchical = [key for key in reports[0]["hashes"] if key.startswith("all_reduce hierarchical ")]
    assert len(hierarchical) == 5
    rooted = [len(places) if kind in ("gather", "scatter") else 1 for kind in parts]
    calls = sum(4 * many * (1 + len(algorithms[kind])) for kind, many in zip(parts, rooted, strict=True))
    assert [report["parts"] for report in reports] == [calls] * len(places)
    assert np.unique([len(report["hashes"]) for report in reports]).size == 1
