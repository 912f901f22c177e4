"""The cluster of this process, from ``TF_CONFIG`` or from a cluster resolver. Needs no TensorFlow.

``TF_CONFIG`` is JSON: the addresses of all tasks by job, and which task this process is::

    {"cluster": {"worker": ["node1:2222", "node2:2222"]}, "task": {"type": "worker", "index": 0}}
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["JOBS", "TFConfig", "from_cluster", "read_tf_config"]

JOBS = ("chief", "worker", "ps", "evaluator")
_TRAINING = ("chief", "worker")  # in the order of ranks
_EXAMPLE = '{"cluster": {"worker": ["node1:2222", "node2:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class TFConfig:
    """A cluster, and which of its tasks this process is.

    Attributes:
        cluster: for each job the addresses, ``host:port``, of its tasks.
        task_type: the job of this process, one of ``JOBS``.
        task_index: its number in that job.
    """

    cluster: dict[str, list[str]]
    task_type: str
    task_index: int

    @property
    def trains(self) -> bool:
        """Whether this process trains with others: whether it is the chief or a worker."""
        return self.task_type in _TRAINING

    @property
    def rank(self) -> int:
        """The number of this process among the chief, which is 0, and the workers; 0 for a task that is neither."""
        if not self.trains:
            return 0
        return self.task_index + (len(self.cluster.get("chief", ())) if self.task_type == "worker" else 0)

    @property
    def size(self) -> int:
        """How many processes train together; 1 for a task that is neither chief nor worker."""
        return len(self.members) if self.trains else 1

    @property
    def members(self) -> list[tuple[str, int, str]]:
        """Job, index and address of the chief and the workers, by rank."""
        return [(job, i, address) for job in _TRAINING for i, address in enumerate(self.cluster.get(job, ()))]

    @property
    def address(self) -> str | None:
        """The address of this process; ``None`` for an evaluator outside the cluster."""
        addresses = self.cluster.get(self.task_type, [])
        return addresses[self.task_index] if self.task_index < len(addresses) else None


def read_tf_config(environ: Mapping[str, str] | None = None) -> TFConfig | None:
    """The cluster in the variable ``TF_CONFIG``.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Returns:
        ``None`` when it is not set, empty, ``{}``, or has an empty cluster: this process is alone.

    Raises:
        ValueError: it is malformed; the text quotes the part and says what is expected.
    """
    text = (os.environ if environ is None else environ).get("TF_CONFIG") or ""
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise ValueError(
            f"TF_CONFIG is no JSON: {error.msg} at character {error.pos}, near {near!r}; expected is something like "
            f"{_EXAMPLE}"
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG is {_quoted(config)}; expected is an object like {_EXAMPLE}")
    if not config:
        return None
    if "cluster" not in config:
        raise ValueError(
            f"TF_CONFIG has no 'cluster', only {_quoted(sorted(config))}; expected is something like {_EXAMPLE}"
        )
    if config["cluster"] == {}:
        return None
    task = config.get("task")
    if task is None:
        raise ValueError(
            f"TF_CONFIG has a 'cluster' and no 'task', which says which of its tasks this process is; expected is "
            f"something like {_EXAMPLE}"
        )
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise ValueError(
            f"the 'task' of TF_CONFIG is {_quoted(task)}; expected is its 'type' and its 'index', like "
            '{"type": "worker", "index": 0}'
        )
    return from_cluster(config["cluster"], task["type"], task["index"], source="TF_CONFIG")


def from_cluster(cluster: Any, task_type: Any, task_index: Any, *, source: str = "cluster_resolver") -> TFConfig:
    """Checks a cluster and a task, and makes a TFConfig of them.

    Args:
        cluster: by job, a list of addresses; not empty.
        task_type, task_index: which task this process is.
        source: where they come from, for errors.

    Raises:
        ValueError: it is malformed.
    """
    checked = _cluster(cluster, source)
    if task_type not in JOBS:
        raise ValueError(f"the task of {source} has the type {_quoted(task_type)}; accepted are {', '.join(JOBS)}")
    index = _index(task_index, source)
    tasks = len(checked.get(task_type, ()))
    # An evaluator works alone, and clusters usually do not list it.
    if task_type == "evaluator" and tasks == 0:
        tasks = index + 1
    if tasks == 0:
        raise ValueError(
            f"the task of {source} has the type {task_type!r}, of which its cluster has none; it has "
            f"{', '.join(map(repr, checked))}"
        )
    if not index < tasks:
        raise ValueError(
            f"the task of {source} is {task_type} {index}, but its cluster has {tasks} of this type; an index from "
            f"0 to {tasks - 1} is accepted"
        )
    return TFConfig(checked, str(task_type), index)


def _cluster(cluster: Any, source: str) -> dict[str, list[str]]:
    if not isinstance(cluster, Mapping) or not cluster:
        raise ValueError(
            f"the cluster of {source} is {_quoted(cluster)}; expected are lists of addresses by job, like "
            '{"worker": ["node1:2222", "node2:2222"]}'
        )
    seen: dict[str, str] = {}
    checked: dict[str, list[str]] = {}
    for job, addresses in cluster.items():
        if job not in JOBS:
            raise ValueError(f"the cluster of {source} has the job {_quoted(job)}; accepted are {', '.join(JOBS)}")
        if not isinstance(addresses, (list, tuple)):
            raise ValueError(
                f"the job {job!r} in the cluster of {source} is {_quoted(addresses)}; expected is a list of addresses, "
                'like ["node1:2222", "node2:2222"]'
            )
        for i, address in enumerate(addresses):
            _check_address(address, f"{job} {i}", source)
            if address in seen:
                raise ValueError(
                    f"the address {address!r} is that of {seen[address]} and of {job} {i} in the cluster of {source}; "
                    "every task has an address of its own"
                )
            seen[address] = f"{job} {i}"
        if addresses:
            checked[job] = [str(address) for address in addresses]
    if not checked:
        raise ValueError(f"the cluster of {source} is {_quoted(cluster)}, without an address")
    if len(checked.get("chief", ())) > 1:
        raise ValueError(f"the cluster of {source} has the chiefs {_quoted(checked['chief'])}; at most one is accepted")
    return checked


def _check_address(address: Any, task: str, source: str) -> None:
    accepted = "host:port is accepted, for example node1:2222, 10.0.0.1:2222 or [fd00::1]:2222"
    if isinstance(address, str):
        host, colon, port = address.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        well_formed = colon and host and (":" in host) == bracketed and port.isascii() and port.isdigit()
        if well_formed and 1 <= int(port) <= 65535:
            return
    raise ValueError(f"the address of {task} in the cluster of {source} is {_quoted(address)}; {accepted}")


def _index(value: Any, source: str) -> int:
    """Launchers write the index as a number or as its digits."""
    try:
        if isinstance(value, bool):
            raise TypeError
        index = int(value, 10) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"the task of {source} has the index {_quoted(value)}; an integer, at least 0, is accepted"
        ) from None
    if index < 0:
        raise ValueError(f"the task of {source} has the index {index}; an integer, at least 0, is accepted")
    return index


def _quoted(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
