"""`init(bootstrap=...)`: stores by which the ranks can talk already. mpi4py is in test_mpi_launchers.py."""

import socket

import pytest
from collectives._startup.bootstraps import bootstraps, job_of
from launching import four

TORCH = """
import os, sys
import collectives
from datetime import timedelta
from torch.distributed import FileStore, TCPStore

rank = int(os.environ["NUMBER"])
where = os.environ["WHERE"]
store = FileStore(where, 2) if "/" in where else TCPStore("127.0.0.1", int(where), is_master=rank == 0)
limit = store.timeout
for _ in range(2):
    comm = collectives.init(bootstrap=store, rank=rank, size=2, transport="tcp")
    assert comm.all_gather_object(rank) == [0, 1]
    comm.barrier()
    comm.close()
assert store.timeout == limit
store.set(f"done/{rank}", "1")
store.wait([f"done/{other}" for other in range(2)])
os.write(1, b"rank %d of 2\\n" % rank)
"""
JAX = """
import os
import jax
import collectives

rank = int(os.environ["NUMBER"])
jax.distributed.initialize(os.environ["WHERE"], 2, rank)
from jax._src.distributed import global_state

for bootstrap in (global_state, global_state.client):
    comm = collectives.init(bootstrap=bootstrap)
    assert (comm.rank, comm.size) == (rank, 2)
    assert comm.all_gather_object(rank) == [0, 1]
    comm.barrier()
    comm.close()
try:
    collectives.init(bootstrap=global_state, size=3)
except ValueError as error:
    assert "size=3 was given, and the client of bootstrap= says size 2" in str(error)
os.write(1, b"rank %d of 2\\n" % rank)
jax.distributed.shutdown()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return str(sock.getsockname()[1])


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore"])
def test_a_store_of_torch(kind, tmp_path):
    pytest.importorskip("torch")
    where = free_port() if kind == "TCPStore" else str(tmp_path / "store")
    four(tmp_path, TORCH, [{"NUMBER": str(rank), "WHERE": where} for rank in range(2)])


def test_the_client_of_jax(tmp_path):
    pytest.importorskip("jax")
    where = f"127.0.0.1:{free_port()}"
    four(tmp_path, JAX, [{"NUMBER": str(rank), "WHERE": where, "JAX_PLATFORMS": "cpu"} for rank in range(2)])


def test_what_is_no_bootstrap():
    with pytest.raises(TypeError) as caught:
        job_of("node1:29400", None, None)
    assert all(bootstrap.NAME in str(caught.value) for bootstrap in bootstraps())


def test_a_store_without_a_rank(tmp_path):
    torch = pytest.importorskip("torch.distributed")
    with pytest.raises(ValueError, match="pass rank= and size=, too"):
        job_of(torch.FileStore(str(tmp_path / "store"), 2), None, 2)
    with pytest.raises(ValueError, match="rank= is 2; an integer from 0 to 1"):
        job_of(torch.FileStore(str(tmp_path / "store"), 2), 2, 2)
