"""`run` places one actor of Ray for each rank, has the ranks meet, and returns what they return."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .._distribution import install_command
from .._startup.environment import format_address
from ..errors import CollectivesError, PeerError
from ..launch._failures import Failures, pickled, rebuilt
from ..launch._process import new_token

R = TypeVar("R")

_ROOM = 300.0  # seconds for the cluster to make room, when no timeout is given; it may have to start machines


def run(
    fn: Callable[..., R],
    num_workers: int,
    resources: Mapping[str, float] | None = None,
    *,
    args: Sequence[Any] = (),
    transport: str | None = None,
    timeout: float | None = None,
) -> list[R]:
    """Runs ``fn(comm, *args)`` in `num_workers` actors of Ray and returns their results, by rank.

    The actors are placed together, or not at all (a placement group), and end with this call. Ranks of one node have
    neighbouring numbers. Rank 0 listens at an address of its node; the address and a token that this function makes
    reach the others through Ray. Without a cluster, or ``ray.init()`` before, Ray starts one on this machine.

    Args:
        fn: called with a connected communicator, and `args`. It travels as Ray's functions do, so it may be a lambda,
            or defined in a notebook.
        num_workers: number of ranks, at least 1.
        resources: of each rank, as ``{"CPU": 2, "GPU": 1}``; one CPU by default.
        args: further arguments; arrays are best given by ``ray.put``, and by ``ray.get`` in `fn`.
        transport: "auto", "shm", "tcp" or "nccl".
        timeout: seconds that placing the actors, starting, and each collective may take; by default 300 for the first.

    Raises:
        Exception: the exception of `fn`, with the traceback of the rank as its ``__cause__``; when several ranks
            failed, that of the root cause. One that cannot be pickled becomes a `CollectivesError` with its text.
        PeerError: the process or the node of a rank died; the text has what Ray says about it.
        TimeoutError: the cluster has no room for all ranks.
        ValueError, TypeError: an argument is not acceptable.
        ImportError: Ray is not installed.

    Example:
        ``collectives.ray.run(train, 8, {"CPU": 4, "GPU": 1}, args=(config,))``
    """
    ray = _ray()
    if isinstance(num_workers, bool) or not isinstance(num_workers, int):
        raise TypeError(f"num_workers is {num_workers!r} of type {type(num_workers).__name__}; an integer is accepted")
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; at least 1 is accepted")
    wanted = _checked({"CPU": 1.0} if resources is None else resources)
    with _room(ray, num_workers, wanted, timeout) as group:
        actors = _actors(ray, group, num_workers, wanted)
        try:
            return _run(ray, actors, (fn, tuple(args)), transport, timeout)
        finally:
            for actor in actors:
                ray.kill(actor)


class Worker:
    """The actor of one rank."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def node(self) -> str:
        """The identity of its node."""
        return str(_ray().get_runtime_context().get_node_id())

    def listen(self) -> str:
        """Listens for the rendezvous, as rank 0; returns the address."""
        host = _ray().util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # It listens from now on: between choosing a port and listening nobody can take it.
        self._listener = socket.create_server((host, 0), family=family, backlog=4096)
        return format_address(*self._listener.getsockname()[:2])

    def run(self, settings: Mapping[str, Any], fn: Callable[..., Any], args: Sequence[Any]) -> tuple[str, Any, str]:
        """Calls the function as one rank: ("result", what it returns, "") or ("error", the exception, its traceback).

        Args:
            settings: for `collectives.init`.
        """
        try:
            if self._listener is not None:
                os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(self._listener.fileno())
            collectives: Any = importlib.import_module("collectives")
            comm = collectives.init(**settings)
            result = fn(comm, *args)
            comm.close()
            return "result", result, ""
        except Exception as error:
            return "error", pickled(error, _ray().cloudpickle.dumps), "".join(traceback.format_exception(error))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            f"collectives.ray needs Ray, which cannot be imported here ({error}): {install_command('ray')}"
        ) from error


def _checked(resources: Mapping[str, float]) -> dict[str, float]:
    accepted = "a mapping like {'CPU': 2, 'GPU': 1} is accepted, of names to numbers above 0"
    if not isinstance(resources, Mapping):
        raise TypeError(f"resources is {resources!r} of type {type(resources).__name__}; {accepted}")
    for name, amount in resources.items():
        if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise TypeError(f"resources has {name!r}: {amount!r}; {accepted}")
        if not 0 < amount < float("inf"):
            raise ValueError(f"resources has {name!r}: {amount!r}; {accepted}")
    if not resources:
        raise ValueError(f"resources is empty; {accepted}")
    return {name: float(amount) for name, amount in resources.items()}


@contextlib.contextmanager
def _room(ray: Any, workers: int, resources: Mapping[str, float], timeout: float | None) -> Iterator[Any]:
    """A placement group with a bundle for each rank, removed afterwards."""
    if not ray.is_initialized():
        ray.init()
    placement = importlib.import_module("ray.util")
    group = placement.placement_group([dict(resources)] * workers, strategy="PACK")
    try:
        limit = _ROOM if timeout is None else timeout
        if not group.wait(timeout_seconds=limit):
            raise TimeoutError(
                f"the cluster made no room for {workers} workers with {dict(resources)} each within {limit:g} s; free "
                f"are {_shown(ray.available_resources())} of {_shown(ray.cluster_resources())}. Ask for less, end what "
                "else runs there, or allow more time by timeout="
            )
        yield group
    finally:
        placement.remove_placement_group(group)


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items()) if ":" not in name)


def _actors(ray: Any, group: Any, workers: int, resources: Mapping[str, float]) -> list[Any]:
    """An actor in each bundle of the group."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    own = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    return [
        ray.remote(Worker)
        .options(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            resources=own,
            max_restarts=0,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, index),
        )
        .remote()
        for index in range(workers)
    ]


def _run(
    ray: Any,
    actors: list[Any],
    task: tuple[Callable[..., R], tuple[Any, ...]],
    transport: str | None,
    timeout: float | None,
) -> list[R]:
    nodes = ray.get([actor.node.remote() for actor in actors])
    # Numbered by node, so that neighbouring ranks share memory; in place, since the caller ends all of them.
    actors[:] = [actor for _, actor in sorted(zip(nodes, actors, strict=True), key=lambda pair: nodes.index(pair[0]))]
    settings = {
        "size": len(actors),
        "rendezvous": ray.get(actors[0].listen.remote()),
        "token": new_token(),
        "transport": transport,
        "timeout": timeout,
    }
    shared = ray.put(task[0]), ray.put(task[1])
    waiting = {actor.run.remote({**settings, "rank": rank}, *shared): rank for rank, actor in enumerate(actors)}
    results: dict[int, R] = {}
    failures = Failures()
    while waiting:
        left = failures.patience()
        if left is not None and left <= 0:
            break
        ready, _ = ray.wait(list(waiting), timeout=left)
        for reference in ready:
            rank = waiting.pop(reference)
            try:
                kind, value, text = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                why = f"the result of rank {rank} cannot be sent: {error.cause}"
                failures.add(CollectivesError(why, rank=rank))
                continue
            except ray.exceptions.RayError as error:
                # On one line: Ray's texts are a page long.
                what = " ".join(str(error).split())
                failures.add(PeerError(f"rank {rank} of {len(actors)}, an actor of Ray, died: {what}", peer=rank))
                continue
            if kind == "result":
                results[rank] = value
            else:
                failures.add(rebuilt(rank, value, text))
    failure = failures.root_cause()
    if failure is not None:
        raise failure
    return [results[rank] for rank in range(len(actors))]
