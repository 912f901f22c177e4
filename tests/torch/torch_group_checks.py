"""What the ranks of test_torch_groups.py run."""

import time
from datetime import timedelta

import collectives
import pytest
import served
import torch
import torch.distributed as dist
import torch_ranks
from collectives.torch._work import Pending


def run(name, *arguments):
    globals()[name](*arguments)


def total(group=None, value=1.0):
    x = torch.full((3,), value)
    dist.all_reduce(x, group=group)
    return x[0].item()


# --- in a world of three --------------------------------------------------------------------------------------------


def new_groups():
    rank = dist.get_rank()
    pair = dist.new_group([0, 2])
    if rank != 1:
        assert total(pair, float(rank)) == 2
        assert dist.get_group_rank(pair, rank) == rank // 2
        x = torch.full((2,), float(rank))
        dist.broadcast(x, src=2, group=pair)
        assert x.tolist() == [2, 2]
    both = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for group, members in zip(both, ([0, 1], [1, 2]), strict=True):
        if rank in members:
            assert total(group) == 2
    mine, groups = dist.new_subgroups(group_size=1)
    assert len(groups) == 3 and total(mine) == 1
    dist.destroy_process_group(mine)


def by_members_alone():
    """The other ranks do not even know of the group."""
    if dist.get_rank() != 1:
        group = dist.new_group([0, 2], use_local_synchronization=True)
        assert total(group) == 2
        dist.destroy_process_group(group)
    dist.barrier()
    if dist.get_rank() == 1:  # torch 2.14 counts these groups too, and names later ones by that, the same on all ranks
        dist.new_group([1], use_local_synchronization=True)


def split_group():
    rank, world = dist.get_rank(), dist.group.WORLD
    parent = world if hasattr(world, "comm") else None
    made = None
    if parent is not None or rank != 1:  # torch's class, from 2.14 on, cannot take nothing from a Python backend
        made = world.split_group([0, 2], timedelta(seconds=30), group_name="split", group_desc="pair")
    if rank == 1:
        assert made is None
    else:
        x = torch.ones(2)
        made.allreduce([x]).wait()
        assert (made.size(), made.rank()) == (2, rank // 2) and x[0] == 2
        made.shutdown()


def many_groups():
    """They need no descriptors, and their calls do not mix."""
    import os

    first = dist.new_group([0, 1, 2])
    total(first)
    before = len(os.listdir("/proc/self/fd"))
    groups = [dist.new_group([0, 1, 2]) for _ in range(8)]
    works, xs = [], []
    for i, group in enumerate(groups):
        xs.append(torch.full((2,), float(i)))
        works.append(dist.all_reduce(xs[-1], group=group, async_op=True))
    for work in reversed(works):
        work.wait()
    assert [x[0].item() for x in xs] == [3.0 * i for i in range(8)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    for group in (first, *groups):
        dist.destroy_process_group(group)


def device_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("data",))
    assert total(mesh.get_group("data")) == 3


def about():
    """What torch knows of the backend and its groups."""
    rank = dist.get_rank()
    assert dist.is_initialized() and dist.is_backend_available("collectives")
    assert dist.get_backend() == dist.Backend.COLLECTIVES == "collectives"
    assert "cpu:collectives" in dist.get_backend_config()
    if hasattr(dist, "get_default_backend_for_device"):
        assert dist.get_default_backend_for_device("cpu") == "gloo"  # as before this library was there
    if hasattr(dist, "get_backend_impl"):
        assert dist.get_backend_impl(device=torch.device("cpu")) is not None
    before = dist.get_pg_count()
    group, _ = dist.new_subgroups_by_enumeration([[0, 2], [1]])
    assert dist.get_process_group_ranks(group) == ([1] if rank == 1 else [0, 2])
    assert dist.get_global_rank(group, 0) == (1 if rank == 1 else 0)
    assert dist.get_pg_count() > before
    assert total(group) == (1 if rank == 1 else 2)
    dist.destroy_process_group(group)
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(timedelta(seconds=50))
        assert total() == 3


def monitored_barrier():
    """Torch before 2.14 has it for Gloo only."""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=30))
    except ValueError as error:
        assert "GLOO" in str(error)


def sequence_numbers():
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group() if hasattr(group, "_get_sequence_number_for_group") else None
    total()
    if before is not None:
        assert group._get_sequence_number_for_group() == before + 1


def shared_world():
    """The groups are in the world of the process, which others in it can use."""
    world = collectives.world()
    assert (world.rank, world.size) == (dist.get_rank(), 3)
    assert world.all_reduce(torch.ones(2))[0] == 3


CHECKS = (
    "new_groups",
    "by_members_alone",
    "split_group",
    "many_groups",
    "device_mesh",
    "about",
    "monitored_barrier",
    "sequence_numbers",
    "shared_world",
)


# --- ways to start --------------------------------------------------------------------------------------------------


def file_store():
    torch_ranks.init()
    assert total() == 2
    dist.destroy_process_group()
    with pytest.raises(collectives.CollectivesError, match="in no world"):
        collectives.world()


def _other_store(name):
    torch_ranks.PLACE["init_method"] += name


def world_of_the_program():
    """A world that exists is used, and stays."""
    import os

    _other_store("-world")
    place = torch_ranks.PLACE["init_method"].removeprefix("file://")
    store = dist.FileStore(f"{place}-address", 2)
    if torch_ranks.PLACE["rank"] == 0:
        port = served.free_ports(1)[0]
        store.set("port", str(port))
    world = collectives.init(
        rank=torch_ranks.PLACE["rank"], size=2, rendezvous=f"127.0.0.1:{int(store.get('port'))}", timeout=50
    )
    torch_ranks.init()
    assert total() == 2
    dist.destroy_process_group()
    assert collectives.world() is world and world.all_reduce(torch.ones(1))[0] == 2
    world.close()
    assert os.getpid()


def again():
    for i in range(3):
        _other_store(f"-{i}")
        torch_ranks.init()
        assert total() == 2
        dist.destroy_process_group()


def lists_of_backends():
    _other_store("-list")
    torch_ranks.init("cpu:collectives")
    assert total() == 2
    dist.destroy_process_group()
    with pytest.raises((ValueError, AssertionError, RuntimeError), match=r"(?i)colectives"):
        torch_ranks.init("colectives")


def gloo_first():
    """A group of this backend where the default one is of another: the world has its ranks only."""
    _other_store("-gloo")
    torch_ranks.init("gloo")
    group = dist.new_group([0, 1], backend="collectives")
    assert total(group) == 2
    assert dist.get_backend(group) == "collectives"
    dist.destroy_process_group()


def alone():
    assert total() == 1
    out = torch.empty(2)
    dist.all_to_all_single(out, torch.ones(2))
    dist.all_gather([out], torch.zeros(2))
    assert out.tolist() == [0, 0]
    dist.barrier()


# --- failures -------------------------------------------------------------------------------------------------------


def disagree(what):
    rank = dist.get_rank()
    x = torch.ones(4)
    op = dist.ReduceOp.SUM
    if rank == 1 and what in ("shape", "asynchronous"):
        x = torch.ones(6)
    elif rank == 1 and what == "dtype":
        x = torch.ones(4, dtype=torch.float64)
    elif rank == 1 and what == "op":
        op = dist.ReduceOp.MAX
    with pytest.raises(collectives.MismatchError) as caught:
        if rank == 1 and what == "collective":
            dist.broadcast(x, 0)
        elif what == "asynchronous":
            dist.all_reduce(x, async_op=True).wait()
        else:
            dist.all_reduce(x, op)
    assert isinstance(caught.value, dist.DistBackendError)
    assert caught.value.rank == rank
    dist.destroy_process_group()  # another world can be made then
    torch_ranks.init()
    assert total() == 2


def survive():
    served.say("waiting")
    with pytest.raises(collectives.PeerError) as caught:
        total()
    assert caught.value.peer == 2 and "rank 2" in str(caught.value)
    assert isinstance(caught.value, dist.DistBackendError)


def deadline():
    rank = dist.get_rank()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    if rank == 0:
        x = torch.ones(2)
        work = dist.all_reduce(x, group=group, async_op=True)
        begin = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            work.wait(timedelta(milliseconds=50))
        assert isinstance(caught.value, dist.DistBackendError) and (
            not isinstance(work, Pending) or not work.is_completed()
        )
        with pytest.raises(collectives.DeadlineError, match="rank 1"):
            work.wait()
        assert not isinstance(work, Pending) or isinstance(work.exception(), collectives.DeadlineError)
        assert time.monotonic() - begin < 30
    dist.barrier()  # of the default group, which goes on


def record_calls(folder):
    """Calls that agree, and one that rank 2 does not make."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 2], group_desc="a pair")
    dist.all_reduce(torch.ones(3))
    if rank != 1:
        dist.broadcast(torch.ones(5, dtype=torch.int64), src=0, group=pair)
        if rank == 0:
            dist.send(torch.ones(4), dst=2)
        else:
            dist.recv(torch.ones(4), src=0)
    out = torch.empty(6)
    dist.all_gather_into_tensor(out, torch.ones(2))
    work = dist.all_reduce(torch.ones(7), async_op=True) if rank != 2 else None
    file = collectives.torch.dump_flight_recorder(folder)
    assert file.name == f"collectives_trace_rank_{rank}"
    dist.barrier(group=pair) if rank != 1 else None
    if work is None:
        dist.all_reduce(torch.ones(7))
    else:
        work.wait()
