"""What the ranks of test_torch_training.py run."""

import threading

import pytest
import torch
import torch.distributed as dist
from collectives.torch._calls import Calls
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SUM = dist.ReduceOp.SUM


def run(name, folder):
    torch.manual_seed(7)
    check = globals()[name]
    check(folder) if "folder" in check.__code__.co_varnames[: check.__code__.co_argcount] else check()


def mlp(width=8):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def batches(step, width=8):
    """The batch of this rank, and that of both."""
    torch.manual_seed(100 + step)
    whole = torch.randn(8, width)
    return whole[4 * dist.get_rank() : 4 * dist.get_rank() + 4], whole


def train(model, batch, steps=3, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batches(step)[batch]).square().mean().backward()
        optimizer.step()


def compare(model, tolerance=1e-5, steps=3):
    """With one process that trains on the global batch."""
    alone = mlp()
    train(alone, 1, steps)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=tolerance, atol=tolerance)


# --- futures --------------------------------------------------------------------------------------------------------


def futures():
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda f: 2 * f.value()[0])
    work.wait()
    assert future.done() and future.value()[0] is x
    assert doubled.wait().tolist() == [4] * 4
    # Without a wait of the program.
    done = threading.Event()
    dist.all_reduce(x, async_op=True).get_future().add_done_callback(lambda f: done.set())
    assert done.wait(30)
    outs = [torch.empty(4) for _ in range(2)]
    assert dist.all_gather(outs, x, async_op=True).get_future().wait()[0] is not None


def callbacks_that_wait():
    """What hangs on a future makes calls, and waits for them and for futures of other calls."""

    def more(future):
        other = torch.ones(2)
        dist.all_reduce(other, async_op=True).get_future().wait()
        dist.all_reduce(other)
        return other

    # The program makes further calls meanwhile, in no order with those.
    chained = [dist.all_reduce(torch.ones(2), async_op=True).get_future().then(more) for _ in range(6)]
    dist.all_reduce(torch.ones(2))
    for future in chained:
        assert future.wait().tolist() == [4, 4]

    if not isinstance(dist.group.WORLD, Calls):
        return  # from 2.14 on, torch puts a future of its own around ours, on which what hangs may run at once
    late = torch.ones(2)
    first = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    second = []
    posted = threading.Event()

    def wait_for_second(future):
        posted.wait(30)
        return second[0].wait()

    waiting = first.then(wait_for_second)
    second.append(dist.all_reduce(late, async_op=True).get_future())
    posted.set()
    waiting.wait()
    assert late.tolist() == [2, 2]


def modes():
    """Callbacks keep the mode of the caller."""
    seen = []
    with torch.inference_mode():
        x = torch.ones(2)
        future = dist.all_reduce(x, async_op=True).get_future()
        hung = future.then(lambda f: seen.append(torch.is_inference_mode_enabled()))
        future.wait()
        x += 1
        ended = dist.all_reduce(x, async_op=True).get_future()
        ended.wait()
        dist.barrier()
        late = ended.then(lambda f: seen.append(torch.is_inference_mode_enabled()))  # the call has long been over
    outside = ended.then(lambda f: seen.append(torch.is_inference_mode_enabled()))
    torch.futures.wait_all([future, hung, late, outside])
    assert seen == [True, True, False]
    dist.barrier()


def order_of_callbacks():
    """The same on all ranks: that of the calls."""
    seen = []
    futures = []
    for i in range(20):
        x = torch.ones(200_000 if i % 3 == 0 else 2)
        future = dist.all_reduce(x, async_op=True).get_future()
        futures.append(future.then(lambda f, i=i: seen.append(i)))
    torch.futures.wait_all(futures)
    everyone = [None, None]
    dist.all_gather_object(everyone, seen)
    if not isinstance(dist.group.WORLD, Calls):
        seen.sort()  # see above
        everyone = [sorted(order) for order in everyone]
    assert everyone[0] == everyone[1] == list(range(20))


# --- DDP ------------------------------------------------------------------------------------------------------------


def ddp():
    model = DistributedDataParallel(mlp())
    train(model, 0)
    compare(model)


def ddp_small_buckets():
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.0005, gradient_as_bucket_view=True)
    train(model, 0)
    compare(model)


def ddp_static_graph():
    model = DistributedDataParallel(mlp(), static_graph=True)
    train(model, 0)
    compare(model)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = mlp(), mlp()

    def forward(self, x):
        return self.used(x) if dist.get_rank() == 0 else self.used(x) + 0 * self.unused(x)


def ddp_unused_parameters():
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    train(model, 0)
    compare(model.module.used)


def ddp_no_sync():
    model = DistributedDataParallel(mlp())
    with model.no_sync():
        model(batches(0)[0]).square().mean().backward()
    gradient = model.module[0].weight.grad.clone()
    model(batches(1)[0]).square().mean().backward()
    sums = [torch.empty_like(gradient) for _ in range(2)]
    dist.all_gather(sums, model.module[0].weight.grad)
    assert torch.equal(sums[0], sums[1]) and not torch.equal(sums[0], gradient)


def ddp_join():
    """Ranks have different numbers of batches."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(batches(step)[0]).square().mean().backward()
            optimizer.step()
    weights = [torch.empty_like(model.module[0].weight) for _ in range(2)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert torch.equal(*weights)


def ddp_batch_norm_and_sparse():
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.BatchNorm1d(8)))
    model(torch.tensor([[dist.get_rank(), 3], [5, 6]])).square().sum().backward()
    gradient = model.module[0].weight.grad
    assert gradient.is_sparse
    everyone = [torch.empty(10, 4) for _ in range(2)]
    dist.all_gather(everyone, gradient.to_dense())
    assert torch.equal(*everyone) and everyone[0][0].abs().sum() > 0
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(mlp())
    assert norm is not None


def hooks():
    from collectives.torch import hooks as ours

    for hook, tolerance in [(ours.float16_hook, 1e-3), (ours.bfloat16_hook, 1e-2)]:
        model = DistributedDataParallel(mlp())
        model.register_comm_hook(None, hook)
        train(model, 0)
        compare(model, tolerance)


def hooks_of_torch():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook

    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    train(model, 0)
    compare(model)
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook):
        model = DistributedDataParallel(mlp())
        try:
            model.register_comm_hook(None, hook)
        except TypeError as error:  # torch refuses bfloat16 for all but NCCL
            assert "bf16" in str(error).lower() or "bfloat16" in str(error).lower()
            continue
        train(model, 0)
        compare(model, 1e-2)
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.0005)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, 0, steps=6)
    weights = [torch.empty_like(model.module[0].weight) for _ in range(2)]
    dist.all_gather(weights, model.module[0].weight.detach())
    assert torch.equal(*weights) and torch.isfinite(weights[0]).all()
    model = DistributedDataParallel(mlp())
    state = post_localSGD_hook.PostLocalSGDState(
        None, subgroup=dist.new_group([dist.get_rank()]), start_localSGD_iter=2
    )
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    train(model, 0)


def backward_without_a_peer():
    model = DistributedDataParallel(mlp())
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return
    with pytest.raises(RuntimeError, match="rank 1"):
        for step in range(3):
            model(batches(step)[0]).square().mean().backward()


# --- sharded --------------------------------------------------------------------------------------------------------


def fsdp2():
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before 2.6
        from torch.distributed._composable.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, 0)
    alone = mlp()
    train(alone, 1)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor().detach(), other.detach(), rtol=1e-5, atol=1e-5)


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(24.0).reshape(6, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal((sharded @ whole.T.contiguous() if False else sharded + sharded).full_tensor(), 2 * whole)
    partial = torch.distributed.tensor.DTensor.from_local(torch.ones(4), mesh, [Partial()])
    assert partial.redistribute(mesh, [Replicate()]).to_local().tolist() == [2] * 4
    assert partial.redistribute(mesh, [Shard(0)]).to_local().tolist() == [2] * 2


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model, alone = mlp(), mlp()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = batches(0)[1]
    torch.testing.assert_close(model(x), alone(x))


def zero_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(mlp())
    train(model, 0, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))
    compare(model)


def checkpoint(folder):
    import torch.distributed.checkpoint as dcp

    place = [folder]
    dist.broadcast_object_list(place, src=0)
    state = {"weight": torch.full((3,), 1.0 + 0 * dist.get_rank()), "step": 5}
    dcp.save(state, checkpoint_id=place[0])
    loaded = {"weight": torch.zeros(3), "step": 0}
    dcp.load(loaded, checkpoint_id=place[0])
    assert loaded["weight"].tolist() == [1] * 3 and loaded["step"] == 5


# --- functional, compiled, profiled ---------------------------------------------------------------------------------


def functional():
    import torch.distributed._functional_collectives as funcol

    group, rank = dist.group.WORLD, dist.get_rank()
    x = torch.full((4,), float(rank + 1))
    assert funcol.all_reduce(x, "sum", group).tolist() == [3] * 4
    assert funcol.all_gather_tensor(x, 0, group).tolist() == [1] * 4 + [2] * 4
    assert funcol.reduce_scatter_tensor(x, "sum", 0, group).tolist() == [3, 3]
    assert funcol.all_to_all_single(x, [2, 2], [2, 2], group).tolist() == [1, 1, 2, 2]
    assert funcol.broadcast(x, 1, group).tolist() == [2] * 4
    assert [t.tolist() for t in funcol.all_reduce_coalesced([x, 2 * x], "sum", group)] == [[3] * 4, [6] * 4]
    pairs = funcol.all_gather_into_tensor_coalesced([x, 2 * x], group)
    assert pairs[1].tolist() == [2] * 4 + [4] * 4
    assert [t.tolist() for t in funcol.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], group)] == [[3, 3]] * 2


def autograd():
    from torch.distributed.nn import functional as differentiable

    x = torch.full((2,), float(dist.get_rank() + 1), requires_grad=True)
    differentiable.all_reduce(x * x).sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def compiled():
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x):
        return funcol.all_reduce(x * 2, "sum", group) + 1

    assert step(torch.ones(3)).tolist() == [5] * 3

    @torch.compile(backend="aot_eager")
    def plain(x):
        dist.all_reduce(x)
        return x + 1

    assert plain(torch.ones(3)).tolist() == [3] * 3


def profiled():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_gather([torch.empty(3), torch.empty(3)], torch.ones(3), async_op=True).wait()
    names = {event.name for event in profile.events()}
    assert {"collectives:all_reduce", "collectives:all_gather"} <= names
    if hasattr(dist, "record_comm"):
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile, dist.record_comm("the loss"):
            dist.all_reduce(torch.ones(3))
        assert "the loss" in {event.name for event in profile.events()}


def detail():
    for step in range(2):
        x = torch.full((3,), float(step))
        dist.all_reduce(x)
        assert x.tolist() == [2 * step] * 3
    model = DistributedDataParallel(mlp())
    train(model, 0)
    compare(model)
    outs = [torch.empty(2) for _ in range(2)]
    dist.all_gather(outs, torch.ones(2))
    dist.barrier()


CHECKS = (
    "futures",
    "callbacks_that_wait",
    "modes",
    "order_of_callbacks",
    "ddp",
    "ddp_small_buckets",
    "ddp_static_graph",
    "ddp_unused_parameters",
    "ddp_no_sync",
    "ddp_join",
    "ddp_batch_norm_and_sparse",
    "hooks",
    "hooks_of_torch",
    "fsdp2",
    "dtensor",
    "tensor_parallel",
    "zero_optimizer",
    "checkpoint",
    "functional",
    "autograd",
    "compiled",
    "profiled",
)
