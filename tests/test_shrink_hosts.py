"""`shrink` where ranks are on two hosts: shared memory inside a host and TCP across, ranks of both die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_namespaces import PORT, REASON, hosts  # noqa: F401  (hosts is a fixture)

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

LIMIT = 60  # seconds
HERE = str(Path(__file__).parent)

PROGRAM = """
import json, os, random, signal, sys, threading, time
import collectives
sys.path.insert(0, sys.argv[1])
import shrinking
seed, victims = json.loads(sys.argv[2])
world = collectives.init()
me = world.rank
shrinking.pool.say = lambda what: world.barrier()
if me in victims:
    rng = random.Random(seed * 100 + me)
    def end():
        time.sleep(rng.choice([0.1, 0.1 + rng.uniform(0, 0.3)]))  # the instant
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=end, daemon=True).start()
print(json.dumps(shrinking.survive(world, seed, world.size - len(victims), 30.0, seed % 2 == 1)))
"""


CASES = [([0, 0, 1], [1]), ([0, 0, 1, 1], [2, 3]), *[([0, 1, 1, 0, 1], [0, 4])] * 4]


@pytest.mark.parametrize(("seed", "places", "victims"), [(seed, *case) for seed, case in enumerate(CASES)])
def test_killed_at_any_instant(hosts, places, victims, seed):  # noqa: F811
    ranks = []
    for rank, place in enumerate(places):
        variables = {
            "COLLECTIVES_RANK": str(rank),
            "COLLECTIVES_SIZE": str(len(places)),
            "COLLECTIVES_RENDEZVOUS": f"10.91.0.1:{PORT}",
            "COLLECTIVES_TOKEN": "w" * 64,
            "COLLECTIVES_TIMEOUT": str(LIMIT),
        }
        command = ["ip", "netns", "exec", hosts[place], sys.executable, "-c", PROGRAM, HERE]
        ranks.append(
            subprocess.Popen(
                [*command, json.dumps([seed, victims])],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    left = [rank for rank in range(len(places)) if rank not in victims]
    for rank in left:
        assert ranks[rank].returncode == 0, outputs[rank][1]
        assert json.loads(outputs[rank][0]) == left[:: -1 if seed % 2 else 1]
