"""What the ranks of test_torch_calls.py run: each call, blocking and asynchronous."""

import pytest
import torch
import torch.distributed as dist
from collectives import MismatchError
from collectives.torch._calls import Calls
from collectives.torch._work import Pending

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def me():
    return dist.get_rank(), dist.get_world_size()


def done(work, asynchronous):
    if asynchronous:
        assert work.wait()
        # From 2.14 on torch has a class of its own around the work, which does not pass these on.
        assert not isinstance(work, Pending) or (work.is_completed() and work.is_success() and not work.exception())
    else:
        assert work is None


def run(name, *arguments):
    globals()[name](*arguments)


def all_reduce(asynchronous):
    rank, size = me()
    for dtype in FLOATS + INTEGERS:
        for op, wanted in [
            (dist.ReduceOp.SUM, sum(range(1, size + 1))),
            (dist.ReduceOp.PRODUCT, 6 if size == 3 else 2),
            (dist.ReduceOp.MIN, 1),
            (dist.ReduceOp.MAX, size),
        ]:
            x = torch.full((3, 5), rank + 1).to(dtype)
            done(dist.all_reduce(x, op, async_op=asynchronous), asynchronous)
            assert x.tolist() == [[wanted] * 5] * 3, (dtype, op)
    for op, wanted in [(dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 3), (dist.ReduceOp.BXOR, 3 if size == 2 else 0)]:
        x = torch.tensor([[1, 2, 3][rank]])
        done(dist.all_reduce(x, op, async_op=asynchronous), asynchronous)
        assert x.item() == wanted, op
    x = torch.full((4,), float(rank))
    done(dist.all_reduce(x, dist.ReduceOp.AVG, async_op=asynchronous), asynchronous)
    assert x.tolist() == [(size - 1) / 2] * 4
    x = torch.full((4,), float(rank + 1))
    done(dist.all_reduce(x, dist._make_nccl_premul_sum(0.5), async_op=asynchronous), asynchronous)
    assert x.tolist() == [sum(range(1, size + 1)) / 2] * 4
    x = torch.full((2,), complex(rank, 1))
    done(dist.all_reduce(x, async_op=asynchronous), asynchronous)
    assert x.tolist() == [complex(sum(range(size)), size)] * 2
    for shape in [(), (0,), (1,), (300_001,)]:
        x = torch.ones(shape)
        done(dist.all_reduce(x, async_op=asynchronous), asynchronous)
        assert (x == size).all()


def layouts(asynchronous):
    """What is dense in another order is taken as it is; what has gaps is refused, and no rank waits."""
    _, size = me()
    x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    done(dist.all_reduce(x, async_op=asynchronous), asynchronous)
    assert (x == size).all()
    x = torch.nn.Parameter(torch.ones(4))
    done(dist.all_reduce(x.detach(), async_op=asynchronous), asynchronous)
    assert (x == size).all()
    gaps = torch.ones(4, 4)[:, :2]
    with pytest.raises(ValueError, match="not contiguous"):
        dist.all_reduce(gaps, async_op=asynchronous)
    with pytest.raises(ValueError, match="not contiguous"):
        dist.broadcast(gaps, 0, async_op=asynchronous)
    with pytest.raises(ValueError, match="not contiguous"):
        dist.all_gather([torch.ones(4, 2) for _ in range(size)], gaps, async_op=asynchronous)
    dist.barrier()


def broadcast_and_reduce(asynchronous):
    rank, size = me()
    for root in range(size):
        x = torch.full((7,), float(rank))
        done(dist.broadcast(x, root, async_op=asynchronous), asynchronous)
        assert x.tolist() == [root] * 7
        x = torch.full((7,), float(rank + 1))
        done(dist.reduce(x, root, dist.ReduceOp.SUM, async_op=asynchronous), asynchronous)
        assert x[0] == (sum(range(1, size + 1)) if rank == root else rank + 1)
    x = torch.full((3,), 1.0 + rank).to(torch.float8_e4m3fn)
    done(dist.broadcast(x, 0, async_op=asynchronous), asynchronous)
    assert x.to(torch.float32).tolist() == [1] * 3


def all_gather(asynchronous):
    rank, size = me()
    own = torch.full((2, 3), float(rank))
    parts = [torch.empty(2, 3) for _ in range(size)]
    done(dist.all_gather(parts, own, async_op=asynchronous), asynchronous)
    assert [part[0, 0].item() for part in parts] == list(range(size))
    for shape in [(2 * size, 3), (size, 2, 3), (6 * size,)]:
        whole = torch.empty(shape)
        done(dist.all_gather_into_tensor(whole, own, async_op=asynchronous), asynchronous)
        assert whole.view(size, -1)[:, 5].tolist() == list(range(size))
    # Lengths may differ where each rank knows those of all.
    parts = [torch.empty(r + 1, dtype=torch.bfloat16) for r in range(size)]
    done(dist.all_gather(parts, torch.full((rank + 1,), rank).to(torch.bfloat16), async_op=asynchronous), asynchronous)
    assert [part.tolist() for part in parts] == [[r] * (r + 1) for r in range(size)]
    parts = [torch.empty(2, dtype=torch.complex64) for _ in range(size)]
    done(dist.all_gather(parts, torch.full((2,), complex(rank, 1)), async_op=asynchronous), asynchronous)
    assert parts[1].tolist() == [complex(1, 1)] * 2
    lists = [[torch.empty(2), torch.empty(3, 1)] for _ in range(size)]
    inputs = [torch.full((2,), float(rank)), torch.full((3, 1), float(-rank))]
    future = dist.all_gather_coalesced(lists, inputs, async_op=asynchronous)
    if asynchronous:
        future.wait()  # torch returns no work here
    assert [(a[0].item(), b[2, 0].item()) for a, b in lists] == [(r, -r) for r in range(size)]


def gather_and_scatter(asynchronous):
    rank, size = me()
    for root in range(size):
        parts = [torch.empty(3) for _ in range(size)] if rank == root else None
        done(dist.gather(torch.full((3,), float(rank)), parts, dst=root, async_op=asynchronous), asynchronous)
        assert rank != root or [part[2].item() for part in parts] == list(range(size))
        out = torch.empty(2, 2)
        given = [torch.full((2, 2), float(10 * root + r)) for r in range(size)] if rank == root else None
        done(dist.scatter(out, given, src=root, async_op=asynchronous), asynchronous)
        assert out.tolist() == [[10 * root + rank] * 2] * 2


def reduce_scatter(asynchronous):
    rank, size = me()
    out = torch.empty(3)
    given = [torch.full((3,), float(r + rank)) for r in range(size)]
    done(dist.reduce_scatter(out, given, async_op=asynchronous), asynchronous)
    assert out.tolist() == [sum(rank + r for r in range(size))] * 3
    out = torch.empty(rank + 1)
    given = [torch.full((r + 1,), float(rank)) for r in range(size)]
    done(dist.reduce_scatter(out, given, dist.ReduceOp.MAX, async_op=asynchronous), asynchronous)
    assert out.tolist() == [size - 1] * (rank + 1)
    out = torch.empty(2)
    done(dist.reduce_scatter_tensor(out, torch.arange(2.0 * size), async_op=asynchronous), asynchronous)
    assert out.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    done(
        dist.reduce_scatter_tensor(out, torch.ones(size, 2), op=dist.ReduceOp.AVG, async_op=asynchronous), asynchronous
    )
    assert out.tolist() == [1, 1]


def all_to_all(asynchronous):
    rank, size = me()
    out = torch.empty(2 * size)
    done(dist.all_to_all_single(out, torch.full((2 * size,), float(rank)), async_op=asynchronous), asynchronous)
    assert out[::2].tolist() == list(range(size))
    # Rank r sends r + s rows to rank s.
    sends, gets = [rank + s for s in range(size)], [r + rank for r in range(size)]
    out = torch.empty(sum(gets), 2)
    x = torch.full((sum(sends), 2), float(rank))
    done(dist.all_to_all_single(out, x, gets, sends, async_op=asynchronous), asynchronous)
    assert out[:, 1].tolist() == [float(r) for r in range(size) for _ in range(r + rank)]
    outs = [torch.empty(r + rank) for r in range(size)]
    given = [torch.full((rank + s,), float(rank)) for s in range(size)]
    done(dist.all_to_all(outs, given, async_op=asynchronous), asynchronous)
    assert [part.tolist() for part in outs] == [[r] * (r + rank) for r in range(size)]
    with pytest.raises(ValueError, match="split sizes"):
        dist.all_to_all_single(out, x, gets, [*sends[:-1], sends[-1] + 1], async_op=asynchronous)
    with pytest.raises(ValueError, match="cannot be split evenly"):
        dist.all_to_all_single(torch.empty(2 * size + 1), torch.empty(2 * size + 1), async_op=asynchronous)


def coalesced(asynchronous):
    rank, size = me()
    xs = [torch.full((3,), float(rank)), torch.full((2, 2), rank), torch.full((5,), float(rank))]
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    assert [x.reshape(-1)[0].item() for x in xs] == [sum(range(size))] * 3
    wholes = [torch.empty(size * 2), torch.empty(size * 3)]
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for whole, width in zip(wholes, (2, 3), strict=True):
            dist.all_gather_into_tensor(whole, torch.full((width,), float(rank)))
    manager.wait()
    assert [whole.view(size, -1)[:, -1].tolist() for whole in wholes] == [list(range(size))] * 2
    outs = [torch.empty(2), torch.empty(1)]
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.arange(float(size * len(out))))
    manager.wait()
    assert outs[1].tolist() == [size * rank]
    xs = [torch.full((3,), float(rank)), torch.full((2, 2), float(rank))]
    future = dist.all_reduce_coalesced(xs, async_op=asynchronous)
    if asynchronous:
        future.wait()  # torch returns no work here
    assert [x.reshape(-1)[0].item() for x in xs] == [sum(range(size))] * 2


def messages():
    rank, size = me()
    right, left = (rank + 1) % size, (rank - 1) % size
    x, y = torch.full((4,), float(rank)), torch.empty(4)
    works = [dist.isend(x, right, tag=3), dist.irecv(y, left, tag=3)]
    for work in works:
        work.wait()
    assert y.tolist() == [left] * 4
    y.zero_()
    ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert y.tolist() == [left] * 4
    if rank == 0:
        dist.send(torch.ones(2, dtype=torch.complex64), 1)
        sources = set()
        for _ in range(size - 1):
            if isinstance(dist.group.WORLD, Calls):
                sources.add(dist.recv(y, tag=7))
                assert y.tolist() == [max(sources)] * 4 or len(sources) > 1
            else:  # torch 2.14 asks the class that it puts around the work, which does not know
                dist.group.WORLD.recv_anysource([y], 7).wait()
                sources.add(int(y[0]))
        assert sources == set(range(1, size))
    else:
        if rank == 1:
            z = torch.empty(2, dtype=torch.complex64)
            assert dist.recv(z, 0) == 0 and z.tolist() == [1, 1]
        dist.send(x, 0, tag=7)
    itself = dist.irecv(y, rank, tag=9)
    dist.isend(x, rank, tag=9).wait()
    itself.wait()
    assert y.tolist() == [rank] * 4
    with pytest.raises(ValueError):
        dist.send(x, rank)


def objects():
    rank, size = me()
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert [entry["rank"] for entry in everything] == list(range(size))
    several = [rank, "root" if rank == 1 else None]
    dist.broadcast_object_list(several, src=1)
    assert several == [1, "root"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered, dst=0)
    assert rank or gathered == [("from", r) for r in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 1 else None, src=1)
    assert mine == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["a", 1], dst=1)
    elif rank == 1:
        got = [None, None]
        dist.recv_object_list(got, src=0)
        assert got == ["a", 1]


def barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.monitored_barrier()


def sparse(asynchronous):
    rank, size = me()
    indices = torch.tensor([[0, rank + 1], [1, 0]])
    x = torch.sparse_coo_tensor(indices, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (5, 2, 2))
    dense = torch.zeros(5, 2, 2)
    dense[0, 1] = size * torch.tensor([1.0, 2.0])
    for r in range(size):
        dense[r + 1, 0] = torch.tensor([3.0, 4.0])
    done(dist.all_reduce(x, async_op=asynchronous), asynchronous)
    assert torch.equal(x.to_dense(), dense)


def direct():
    """The methods of a group itself, with bare tensors, as torch's own code calls them."""
    rank, size = me()
    group = dist.group.WORLD
    assert (group.rank(), group.size()) == (rank, size)
    x = torch.full((2,), float(rank))
    group.allreduce(x).wait()
    assert x.tolist() == [sum(range(size))] * 2
    x = torch.full((2,), float(rank))
    group.allreduce([x], dist.ReduceOp.MAX).wait()
    assert x.tolist() == [size - 1] * 2
    x = torch.full((2,), float(rank))
    group.broadcast(x, root=1).wait()
    assert x.tolist() == [1, 1]
    group.reduce(x, root=0).wait()
    parts = [torch.empty(2) for _ in range(size)]
    group.allgather(parts, torch.full((2,), float(rank))).wait()
    assert parts[-1].tolist() == [size - 1] * 2
    group.barrier().wait()
    assert dist.get_backend() == "collectives"


def newer_names():
    """Of calls that have had other names before torch 2.13, and those that came with it or later."""
    rank, size = me()
    if hasattr(dist, "all_gather_single"):
        whole = torch.empty(2 * size)
        dist.all_gather_single(whole, torch.full((2,), float(rank)))
        assert whole[::2].tolist() == list(range(size))
        out = torch.empty(1)
        dist.reduce_scatter_single(out, torch.arange(float(size)))
        assert out.item() == size * rank


def disagreement():
    """A vector call of whose lengths ranks disagree is an error on all; the group goes on."""
    rank, size = me()
    sends = [2] * size
    gets = [2] * size
    if rank == 0:
        gets[1] = 3
    with pytest.raises(MismatchError, match="rank 1 gives 2 rows of tensor 0 to rank 0, which expects 3"):
        dist.all_to_all_single(torch.empty(sum(gets)), torch.ones(sum(sends)), gets, sends)
    dist.barrier()


def wrong_arguments():
    _, size = me()
    x = torch.ones(4)
    with pytest.raises(ValueError, match="dtype"):
        dist.all_gather([torch.empty(4, dtype=torch.float64)] * size, x)
    with pytest.raises(ValueError, match=f"has {size + 1} tensors"):
        dist.all_gather([torch.empty(4) for _ in range(size + 1)], x)
    with pytest.raises(ValueError, match="elements"):
        dist.all_gather_into_tensor(torch.empty(4 * size + 1), x)
    with pytest.raises(ValueError, match="elements"):
        dist.reduce_scatter_tensor(x, torch.empty(4 * size + 1))
    with pytest.raises((TypeError, NotImplementedError), match=r"(?i)quint8|quantized"):
        dist.all_reduce(torch.quantize_per_tensor(x, 1, 0, torch.quint8))
    with pytest.raises((TypeError, ValueError), match="avg"):
        dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG)
    dist.barrier()


BOTH = (  # blocking and asynchronous
    "all_reduce",
    "layouts",
    "broadcast_and_reduce",
    "all_gather",
    "gather_and_scatter",
    "reduce_scatter",
    "all_to_all",
    "coalesced",
    "sparse",
)
ONCE = ("messages", "objects", "barriers", "direct", "newer_names", "disagreement", "wrong_arguments")
