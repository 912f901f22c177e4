"""Random programs for the ranks of a job: what they are, what each rank must get, and how a rank runs one.

A program is a list of items, each the same on all ranks. Which communicators exist, and who is in them, follows from
the items alone (`resolve`), so the model, the ranks and the text for people all see the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DENSE = ("all_reduce", "broadcast", "reduce", "barrier")
VECTOR = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
OBJECTS = ("broadcast_object", "all_gather_object", "gather_object", "scatter_object")
MAKING = ("split", "dup", "new_group")
NOTHING = "nothing"  # what a call shrinks to that has no part in a failure
KINDS = (NOTHING, *DENSE, *VECTOR, *OBJECTS, "message", *MAKING, "close")
COMBINE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
MOST_GROUPS = 8  # open at a time

Arrays = list[Any]


@dataclass(frozen=True)
class Item:
    """One call. What does not concern its kind is left aside.

    Attributes:
        kind: one of `KINDS`.
        group: which of the open communicators, modulo their number; 0 is the latest.
        op, dtype: of the elements.
        shapes: of the tensors; vector collectives leave out axis 0.
        rows: of the parts along axis 0, again and again; colors and keys of a split.
        layout: plain, fortran or strided.
        root, other: ranks, modulo their number: the root, or the two sides of a message.
        tag: of a message.
        separate: the result goes to arrays of its own.
        counted: all ranks say the lengths of the parts, which are equal otherwise where only some would have to.
        asynchronous: the call returns a work.
        seed: of the values.
    """

    kind: str
    group: int = 0
    op: str = "sum"
    dtype: str = "int64"
    shapes: tuple[tuple[int, ...], ...] = ((3,),)
    rows: tuple[int, ...] = (1,)
    layout: str = "plain"
    root: int = 0
    other: int = 0
    tag: int = 0
    separate: bool = False
    counted: bool = False
    asynchronous: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """An item where it stands: the number of its communicator, the ranks of the world in it, the groups it makes."""

    item: Item
    group: int
    members: tuple[int, ...]
    made: dict[int, tuple[int, ...]]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def root(self) -> int:
        return self.item.root % self.size

    @property
    def dest(self) -> int:
        """Of a message, whose source is the root."""
        return (self.root + 1 + self.item.other % (self.size - 1)) % self.size

    def rows(self, part: int, tensor: int) -> int:
        """Of a part; for all_to_all it is from * size + to."""
        rows = self.item.rows
        uneven = self.item.counted or self.item.kind in ("all_gather", "gather")
        return rows[(part + 3 * tensor) % len(rows) if uneven else tensor % len(rows)]

    @property
    def free(self) -> bool:
        """Whether the call waits for no other rank: then its order among calls on other communicators is free."""
        exchanges = self.item.kind == "scatter" or (self.item.kind == "all_to_all" and self.item.counted)
        exchanges = exchanges or (self.item.kind in ("all_gather", "gather") and not self.item.counted)
        return self.item.asynchronous and not exchanges and self.item.kind in (*DENSE, *VECTOR, "message")


def colors(step: Step) -> list[tuple[int | None, int]]:
    """Color and key of each member."""
    numbers = step.item.rows
    picked = [(numbers[i % len(numbers)] + i * step.item.seed) % 4 for i in range(step.size)]
    return [(None if c == 3 else c % 2, numbers[(2 * i + 1) % len(numbers)]) for i, c in enumerate(picked)]


def chosen(step: Step) -> list[int]:
    """The members of a new group."""
    shuffled = random.Random(step.item.seed).sample(range(step.size), step.size)
    return shuffled[: step.size - step.item.other % step.size]


def groups_made(step: Step) -> list[tuple[int, ...]]:
    """The ranks of the world in each group that a step makes."""
    if step.item.kind == "dup":
        return [step.members]
    if step.item.kind == "new_group":
        return [tuple(step.members[r] for r in chosen(step))]
    by_color: dict[int, list[tuple[int, int]]] = {}
    for r, (color, key) in enumerate(colors(step)):
        if color is not None:
            by_color.setdefault(color, []).append((key, r))
    return [tuple(step.members[r] for _, r in sorted(ranks)) for ranks in by_color.values()]


def resolve(program: Sequence[Item], size: int) -> list[Step]:
    """The steps of a program on a world of this size; items that cannot be done there are left out."""
    groups = {0: tuple(range(size))}
    number = 0
    steps = []
    for item in program:
        group = sorted(groups)[-1 - item.group % len(groups)]
        step = Step(item, group, groups[group], {})
        if item.kind == NOTHING or (item.kind == "message" and step.size < 2) or (item.kind == "close" and group == 0):
            continue
        if item.kind in MAKING:
            if len(groups) >= MOST_GROUPS:
                continue
            for members in groups_made(step):
                number += 1
                step.made[number] = groups[number] = members
        if item.kind == "close":
            del groups[group]
        steps.append(step)
    return steps


# --- the model ------------------------------------------------------------------------------------------------------


def laid_out(values: Any, layout: str) -> Any:
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "strided" and values.ndim:
        wide = np.zeros((*values.shape[:-1], values.shape[-1] * 2), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    return values


def inputs(step: Step, rank: int) -> Arrays:
    """What a member gives. Small integers: sums and products of eight are exact, or wrap around, in every dtype."""
    item, n = step.item, step.size
    numbers = np.random.default_rng([item.seed, rank])
    tensors = []
    for t, shape in enumerate(item.shapes):
        if item.kind in ("all_gather", "gather"):
            shape = (step.rows(rank, t), *shape)
        elif item.kind == "all_to_all":
            shape = (sum(step.rows(rank * n + to, t) for to in range(n)), *shape)
        elif item.kind in VECTOR:
            shape = (sum(step.rows(p, t) for p in range(n)), *shape)
        tensors.append(laid_out(numbers.integers(0, 5, shape).astype(item.dtype), item.layout))
    return tensors


def thing(step: Step, rank: int) -> Any:
    """An object of a member."""
    return {"rank": rank, "arrays": inputs(step, rank), "text": "x" * (step.item.seed % 50), "none": None}


def parts(step: Step, rank: int) -> list[Arrays]:
    """The parts of what a member gives, by tensor."""
    first = rank * step.size if step.item.kind == "all_to_all" else 0
    found = []
    for t, array in enumerate(inputs(step, rank)):
        borders = np.cumsum([step.rows(first + p, t) for p in range(step.size - 1)])
        found.append(np.split(array, borders))
    return found


def combined(step: Step) -> Arrays:
    """The tensors of all members reduced, one after the other."""
    everyone = [inputs(step, r) for r in range(step.size)]
    results = []
    for tensors in zip(*everyone, strict=True):
        total = np.array(tensors[0])
        for array in tensors[1:]:
            total = np.asarray(COMBINE[step.item.op](total, array), total.dtype)
        results.append(total)
    return results


def expected(step: Step, rank: int) -> Any:
    """What a member must have after the call; None where it gets nothing."""
    kind, n, root = step.item.kind, step.size, step.root
    if kind == "barrier" or (kind in ("reduce", "gather", "gather_object") and rank != root):
        return None
    if kind in ("all_reduce", "reduce"):
        return combined(step)
    if kind == "broadcast":
        return inputs(step, root)
    if kind in ("all_gather", "gather"):
        return [np.concatenate(arrays) for arrays in zip(*(inputs(step, r) for r in range(n)), strict=True)]
    if kind == "scatter":
        return [pieces[rank] for pieces in parts(step, root)]
    if kind == "reduce_scatter":
        cuts = [np.cumsum([step.rows(p, t) for p in range(n - 1)]) for t in range(len(step.item.shapes))]
        return [np.split(a, c)[rank] for a, c in zip(combined(step), cuts, strict=True)]
    if kind == "all_to_all":
        given = [parts(step, r) for r in range(n)]
        return [np.concatenate([given[r][t][rank] for r in range(n)]) for t in range(len(step.item.shapes))]
    if kind == "message":
        return inputs(step, root) if rank == step.dest else None
    if kind == "broadcast_object":
        return thing(step, root)
    if kind == "scatter_object":
        return thing(step, rank)
    return [thing(step, r) for r in range(n)]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


# --- what people read -----------------------------------------------------------------------------------------------


def random_item(chance: random.Random, kinds: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Item:
    """A call of one of these kinds, on tensors of these shapes."""
    return Item(
        kind=chance.choice(kinds),
        group=chance.randrange(MOST_GROUPS + 1),
        op=chance.choice(sorted(COMBINE)),
        dtype=chance.choice(["int32", "uint8", "int64", "float64"]),
        shapes=tuple(chance.choices(shapes, k=chance.randint(1, 3))),
        rows=tuple(chance.choices(range(6), k=chance.randint(1, 7))),
        layout=chance.choice(["plain", "fortran", "strided"]),
        root=chance.randrange(8),
        other=chance.randrange(8),
        tag=chance.randrange(3),
        separate=chance.random() < 0.5,
        counted=chance.random() < 0.5,
        asynchronous=chance.random() < 0.5,
        seed=chance.randrange(1 << 30),
    )


def text(program: Sequence[Item], size: int) -> str:
    """The program as calls, one a line: communicators are g0, g1, ...; arguments that differ by rank are lists."""
    lines = [f"g0: {size} ranks"]
    for i, step in enumerate(resolve(program, size)):
        item = step.item
        if item.kind in MAKING:
            words = {"split": f"colors and keys {colors(step)}", "new_group": f"{chosen(step)}", "dup": ""}[item.kind]
            made = ", ".join(f"g{number} of world ranks {list(ranks)}" for number, ranks in step.made.items())
            lines.append(f"{i}: g{step.group}.{item.kind}({words}) -> {made or 'none'}")
            continue
        words = ""
        if item.kind == "message":
            words = f"from {step.root} to {step.dest}, tag {item.tag}, {item.dtype} {list(item.shapes)}"
        elif item.kind not in ("barrier", "close"):
            words = f"{item.op} {item.dtype} {list(item.shapes)} root {step.root}"
        if item.kind in VECTOR:
            count = step.size**2 if item.kind == "all_to_all" else step.size
            words += f" rows {[[step.rows(p, t) for p in range(count)] for t in range(len(item.shapes))]}"
            words += " counted" if item.counted else ""
        words += f" {item.layout}" + " separate" * item.separate + f" seed {item.seed}"
        after = " async" if item.asynchronous and item.kind in (*DENSE, *VECTOR, "message") else ""
        lines.append(f"{i}: g{step.group}.{item.kind}({words}){after}")
    return "\n".join(lines)


# --- on a rank ------------------------------------------------------------------------------------------------------


class Pending:
    """A call that has been made: its work or its value, and what it was given."""

    def __init__(self, number: int, step: Step, rank: int) -> None:
        self.number, self.step, self.rank = number, step, rank
        self.given: Any = None
        self.intact = True  # what is given must not change
        self.value: Any = None

    def start(self, comm: Any) -> None:
        item, step, rank = self.step.item, self.step, self.rank
        more: dict[str, Any] = {"async_op": item.asynchronous}
        as_list = len(item.shapes) != 1 or item.seed % 2 == 1
        self.given = tensors = inputs(step, rank)
        x = tensors if as_list else tensors[0]
        if item.kind in OBJECTS:
            root = () if item.kind == "all_gather_object" else (step.root,)
            self.given = thing(step, rank)
            if item.kind == "scatter_object":
                self.given = [thing(step, r) for r in range(step.size)] if rank == step.root else None
            self.value = getattr(comm, item.kind)(self.given, *root)
            return
        if item.kind == "message":
            if rank == step.root:
                self.value = comm.send(x, step.dest, item.tag, **more)
            else:
                target = [laid_out(np.zeros_like(a), item.layout) for a in tensors]
                self.value = comm.recv(target if as_list else target[0], step.root, item.tag, **more)
            return
        if item.kind == "barrier":
            self.value = comm.barrier(**more)
            return
        wanted = expected(step, rank)
        if item.separate and (wanted is not None or item.kind == "reduce"):
            out = [laid_out(np.full_like(a, 77), item.layout) for a in wanted or tensors]
            more["out"] = out if as_list else out[0]
        if item.kind in ("all_reduce", "reduce"):
            more["op"] = item.op
        if item.kind == "reduce_scatter":
            more["op"] = item.op
        if item.kind in ("broadcast", "reduce", "gather", "scatter"):
            more["root"] = step.root
        if item.kind in VECTOR and item.counted and (item.kind != "scatter" or rank == step.root):
            first = rank * step.size if item.kind == "all_to_all" else 0
            rows = [[step.rows(first + p, t) for p in range(step.size)] for t in range(len(tensors))]
            more["counts"] = rows if as_list else rows[0]
        self.intact = item.kind in VECTOR or item.separate or (item.kind == "reduce" and rank != step.root)
        if item.kind == "scatter" and rank != step.root:
            x = None
        self.value = getattr(comm, item.kind)(x, **more)

    def finish(self) -> None:
        item = self.step.item
        if item.asynchronous and item.kind not in OBJECTS:
            self.value = self.value.result()

    def fault(self) -> str:
        """What is wrong, or nothing."""
        step, rank = self.step, self.rank
        wanted = expected(step, rank)
        got = self.value
        if step.item.kind not in OBJECTS and isinstance(got, np.ndarray):
            got = [got]
        if wanted is None and step.item.kind == "reduce":
            got = None  # whatever the arrays hold
        where = f"step {self.number} ({step.item.kind} on g{step.group}), rank {rank} there"
        if not same(got, wanted):
            return f"{where}: got {got!r} instead of {wanted!r}"
        fresh: Any = inputs(step, rank)
        if step.item.kind in OBJECTS:
            fresh = thing(step, rank)
            if step.item.kind == "scatter_object":
                fresh = [thing(step, r) for r in range(step.size)] if rank == step.root else None
        if self.intact and not same(self.given, fresh):
            return f"{where}: its input has changed to {self.given!r}"
        return ""


def lanes(block: Sequence[tuple[int, Step]], order: random.Random) -> Iterator[tuple[int, Step]]:
    """Calls that wait for no other rank, in an order of this rank: only those that are matched by order keep theirs."""
    found: dict[Any, list[tuple[int, Step]]] = {}
    for number, step in block:
        message = (step.root, step.dest, step.item.tag) if step.item.kind == "message" else ()
        found.setdefault((step.group, *message), []).append((number, step))
    while found:
        lane = order.choice(list(found))
        yield found[lane].pop(0)
        if not found[lane]:
            del found[lane]


def ordered(steps: Sequence[Step], order: random.Random) -> Iterator[tuple[int, Step]]:
    """The steps in an order of this rank."""
    block: list[tuple[int, Step]] = []
    for number, step in enumerate(steps):
        if step.free:
            block.append((number, step))
            continue
        yield from lanes(block, order)
        block = []
        yield number, step
    yield from lanes(block, order)


def make(comm: Any, step: Step, world_rank: int) -> dict[int, Any]:
    """Makes the group of this rank; its number and the communicator."""
    if step.item.kind == "split":
        group = comm.split(*colors(step)[comm.rank])
    else:
        group = comm.dup() if step.item.kind == "dup" else comm.new_group(chosen(step))
    for number, members in step.made.items():
        if world_rank in members:
            assert (group.rank, group.size) == (members.index(world_rank), len(members))
            return {number: group}
    assert group is None
    return {}


def run(comm: Any, program: Sequence[Item], seed: int) -> list[str]:
    """Runs the program; what is wrong afterwards. Calls and waits come in an order of this rank, where they may."""
    done: list[Pending] = []
    groups = {0: comm}
    try:
        _run(program, seed, groups, done)
    except Exception as error:
        # What was returned before must be right all the same. Then as programs that end: no rank waits for this one.
        error.faults = faults(done)  # type: ignore[attr-defined]
        raise
    finally:
        for group in list(groups.values())[1:]:
            group.close()
    return faults(done)


def faults(done: list[Pending]) -> list[str]:
    return [fault for call in sorted(done, key=lambda call: call.number) if (fault := call.fault())]


def _run(program: Sequence[Item], seed: int, groups: dict[int, Any], done: list[Pending]) -> None:
    comm = groups[0]
    order = random.Random(seed * 1000 + comm.rank)
    pending: list[Pending] = []

    def wait(some: list[Pending]) -> None:
        order.shuffle(some)
        for call in some:
            call.finish()
            done.append(call)
            pending.remove(call)

    for number, step in ordered(resolve(program, comm.size), order):
        if comm.rank not in step.members:
            continue
        group = groups[step.group]
        if step.item.kind in MAKING:
            groups.update(make(group, step, comm.rank))
        elif step.item.kind == "close":
            wait([call for call in pending if call.step.group == step.group])
            group.close()
        elif step.item.kind != "message" or group.rank in (step.root, step.dest):
            pending.append(Pending(number, step, group.rank))
            pending[-1].start(group)
            if not step.item.asynchronous or step.item.kind in OBJECTS:
                wait(pending[-1:])
    wait(list(pending))
