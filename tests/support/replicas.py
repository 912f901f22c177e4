"""Jobs of processes with several ranks each, for the tests of replicas."""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys

from namespaces import PORT

LIMIT = 60  # seconds that nothing here may reach
KEPT: tuple[str, ...] = ()  # variables of ours that processes inherit

# A process: each replica runs `work` in a thread of its own, and what they return is printed by replica.
START = r"""
import json, os, sys, threading
import numpy as np
import collectives

process, count = int(os.environ.get("COLLECTIVES_RANK", "0")), json.loads(sys.argv[1])
if isinstance(count, list):
    count = count[process]
comms = collectives.init() if count is None else collectives.init(replicas=count)
if count is None:
    comms = [comms]
assert [comm.rank for comm in comms] == list(range(comms[0].rank, comms[0].rank + len(comms)))

def say(**what):
    print(json.dumps(what), flush=True)

def in_threads(work):
    results = [None] * len(comms)
    def run(replica):
        results[replica] = work(comms[replica], replica)
    threads = [threading.Thread(target=run, args=(replica,)) for replica in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
"""


class Process:
    def __init__(self, program, variables, arguments, prefix=(), pass_fds=()):
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        environ |= {name: os.environ[name] for name in KEPT}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", program, *map(str, arguments)],
            env={**environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=pass_fds,
        )

    def hear(self):
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        assert ready, "a process says nothing"
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.stderr.read().decode())
        return json.loads(line)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        self.process.wait(LIMIT)


@contextlib.contextmanager
def job(program, replicas, transport="auto", arguments=(), hosts=None, places=None, start=START):
    """A process for each entry of `replicas`, in the namespace `hosts[places[i]]` where these are given."""
    with contextlib.ExitStack() as stack:
        variables = {
            "COLLECTIVES_SIZE": str(len(replicas)),
            "COLLECTIVES_TOKEN": "r" * 64,
            "COLLECTIVES_TRANSPORT": transport,
            "COLLECTIVES_TIMEOUT": str(LIMIT),
        }
        descriptors = []
        if places is None:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            descriptors = [listener.fileno()]
            variables["COLLECTIVES_RENDEZVOUS"] = f"127.0.0.1:{listener.getsockname()[1]}"
        else:
            variables["COLLECTIVES_RENDEZVOUS"] = f"10.91.0.1:{PORT}"
        processes = []
        for number, count in enumerate(replicas):
            own = {**variables, "COLLECTIVES_RANK": str(number)}
            if number == 0 and descriptors:
                own["COLLECTIVES_RENDEZVOUS_FD"] = str(descriptors[0])
            prefix = [] if places is None else ["ip", "netns", "exec", hosts[places[number]]]
            processes.append(
                Process(
                    start + program, own, [json.dumps(count), *arguments], prefix, descriptors if number == 0 else []
                )
            )
            stack.callback(processes[-1].close)
        yield processes


def finish(processes):
    """All end by themselves, in good order and in silence but for what a rank says when it misses another."""
    for process in processes:
        process.process.stdin.close()
        assert process.process.wait(LIMIT) == 0, process.process.stderr.read().decode()
        said = process.process.stderr.read().decode().splitlines()
        # What a failure was, and over which interfaces hosts are connected.
        assert all(re.match(r"collectives: (rank |\d+ ranks, TCP between hosts over )", line) for line in said), said


def in_order(replicas):
    return [(process, replica) for process, count in enumerate(replicas) for replica in range(count or 1)]
