"""Ranks that the launcher of an MPI starts meet by its store, with nothing set, and MPI works in the same processes."""

import socket

import namespaces
import pytest
from launching import MPIS, check, launcher, program, run

AGENT = """#!/bin/bash
# In place of ssh: options, a host, words for its shell. A host has a name of its own, by which Open MPI 5 knows it.
while [[ $1 == -* ]]; do shift; done
if [[ $1 == 10.91.0.1 ]]; then there={0}; else there={1}; fi
shift
exec ip netns exec $there unshare -u sh -c "hostname $there; $*"
"""


@pytest.mark.parametrize("mpi", ["no mpi4py", "mpi4py before", "mpi4py after"])
@pytest.mark.parametrize("name", MPIS)
def test_ranks_meet_by_the_store_of_the_launcher(name, mpi, tmp_path):
    command, python = launcher(name)
    done = run([*command, "-n", "4", python, program(tmp_path), mpi], tmp_path)
    check(done)
    said = [line for line in done.stderr.splitlines() if line.startswith("collectives: mp")]
    assert len(said) == 1
    assert "has started this process as rank 0 of 4" in said[0]


@pytest.mark.parametrize("name", MPIS)
def test_a_communicator_of_mpi4py_is_a_bootstrap(name, tmp_path):
    command, python = launcher(name)
    text = """
import os
from mpi4py import MPI
import collectives

ring = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)  # the ranks in another order
comm = collectives.init(bootstrap=ring, transport="tcp")
assert comm.all_gather_object(MPI.COMM_WORLD.rank) == [3, 2, 1, 0]
os.write(1, b"rank %d of %d\\n" % (comm.rank, comm.size))
try:
    collectives.init(bootstrap=ring, rank=3 - ring.rank)
except ValueError as error:
    assert "of bootstrap= says rank" in str(error), error
except collectives.CollectivesError as error:
    assert "was asked for" in str(error), error
"""
    check(run([*command, "-n", "4", python, program(tmp_path, text)], tmp_path))


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_rendezvous_is_enough_where_the_store_is_not_to_be_used(name, tmp_path):
    command, python = launcher(name)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    where = {"COLLECTIVES_RENDEZVOUS": address, "COLLECTIVES_TOKEN": "of the test"}
    done = run([*command, "-n", "4", python, program(tmp_path)], tmp_path, **where)
    check(done)
    assert "ranks meet at the rendezvous that was given" in done.stderr


@pytest.mark.parametrize("name", MPIS)
def test_a_rank_that_does_not_come_is_a_deadline(name, tmp_path):
    """The store itself would wait for ever."""
    command, python = launcher(name)
    text = """
import os, signal
import collectives

rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
if rank == 1:
    signal.pause()  # until the launcher ends it
try:
    collectives.init(timeout=2)
except collectives.DeadlineError as error:
    os.write(1, b"late: %s\\n" % str(error).encode())
    os._exit(3)
"""
    done = run([*command, "-n", "2", python, program(tmp_path, text)], tmp_path)
    assert done.returncode not in (0, 124, 137), done.stderr
    said = "rank 1 did not come" if "openmpi" in name else "rank 0 waited 2 s at its PMI"
    assert said in done.stdout
    assert "COLLECTIVES_START_TIMEOUT" in done.stdout


@pytest.mark.parametrize(("name", "variable"), [("openmpi", "PMIX_NAMESPACE"), ("mpich", "PMI_FD")])
def test_without_the_store_the_error_names_what_to_set(name, variable, tmp_path):
    command, python = launcher(name)
    done = run(
        [*command, "-n", "2", "env", "-u", variable, python, "-c", "import collectives as c; c.init()"], tmp_path
    )
    assert done.returncode != 0
    for part in ("has started this process as rank", f"{variable} is not set", "COLLECTIVES_RENDEZVOUS", "size=1"):
        assert part in done.stderr


@pytest.mark.skipif(namespaces.REASON is not None, reason=str(namespaces.REASON))
@pytest.mark.parametrize("name", MPIS)
def test_two_hosts(name, tmp_path):
    """Each has the address of the other on its loopback interface as well, which is not to be published."""
    command, python = launcher(name)
    agent = tmp_path / "agent.sh"
    with namespaces.two_hosts() as hosts:
        agent.write_text(AGENT.format(*hosts))
        agent.chmod(0o755)
        if "openmpi" in name:
            agents = ["--prtemca", "plm_ssh_agent"] if name == "openmpi" else ["--mca", "plm_rsh_agent"]
            where = [*agents, str(agent), "--host", "10.91.0.1:2,10.91.0.2:2"]
        else:
            where = ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", "10.91.0.1,10.91.0.2", "-ppn", "2"]
        inside = ["ip", "netns", "exec", hosts[0]]
        done = run([*inside, command[0], *where, "-n", "4", python, program(tmp_path)], tmp_path)
    check(done)
    assert "4 ranks, TCP between hosts over" in done.stderr
