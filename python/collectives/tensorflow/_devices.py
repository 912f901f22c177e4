"""The argument ``devices`` of a strategy: names of devices of a worker, each of which becomes a replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["find_devices", "read_devices"]

_EXAMPLE = "['CPU:0', 'CPU:1']"


def read_devices(devices: Any) -> list[tf.DeviceSpec] | None:
    """The argument ``devices`` of a strategy, before TensorFlow runs; ``None`` stays what it is.

    Raises:
        TypeError: it is not a list of names.
        ValueError: it is empty, or a name is malformed or of another type of device than the first.
    """
    if devices is None:
        return None
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not all(isinstance(d, str) for d in devices):
        raise TypeError(f"devices is {devices!r}; a list of names of devices is accepted, for example {_EXAMPLE}")
    if not devices:
        raise ValueError(f"devices is empty; a strategy needs at least one, for example {_EXAMPLE}")
    specs = [_read(name) for name in devices]
    kinds = list(dict.fromkeys(spec.device_type for spec in specs))
    if len(kinds) > 1:
        raise ValueError(f"devices is {list(devices)!r}, of the types {', '.join(kinds)}; one type is accepted")
    return specs


def _read(name: str) -> tf.DeviceSpec:
    try:
        spec = tf.DeviceSpec.from_string(name)
    except ValueError:
        spec = tf.DeviceSpec()
    if spec.device_type in (None, "*") or spec.device_index is None:
        raise ValueError(
            f"{name!r} in devices names no device; its type and its number are accepted, for example 'CPU:0'"
        )
    return spec


def find_devices(specs: Sequence[tf.DeviceSpec], worker_device: str) -> tuple[tuple[str, ...], str]:
    """Full names of such devices, and their type.

    Args:
        specs: what ``read_devices`` gave.
        worker_device: the job and task of this process, such as ``/job:worker/task:0``; empty when it is alone.

    Raises:
        ValueError: a device does not exist, is named twice, or belongs to another worker.
    """
    own = tf.DeviceSpec.from_string(worker_device)
    kind = str(specs[0].device_type)
    # The list also has the devices of other workers.
    listed = [tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)]
    there = {spec.device_index: spec for spec in listed if not worker_device or (spec.job, spec.task) == _place(own)}
    chosen: list[int] = []
    for spec in specs:
        found = there.get(spec.device_index)
        if found is None or not _within(spec, found):
            numbers = ", ".join(f"{kind}:{index}" for index in sorted(there)) or f"no {kind}"
            raise ValueError(
                f"devices has {spec.to_string()}, and this worker has {numbers}; logical devices are configured by "
                "tf.config.set_logical_device_configuration, before anything else of TensorFlow runs"
            )
        if spec.device_index in chosen:
            raise ValueError(f"devices has {kind}:{spec.device_index} twice; each device is one replica")
        chosen.append(spec.device_index)
    return tuple(f"{worker_device}/device:{kind}:{index}" for index in chosen), kind


def _place(spec: tf.DeviceSpec) -> tuple[Any, Any]:
    return spec.job, spec.task


def _within(spec: tf.DeviceSpec, found: tf.DeviceSpec) -> bool:
    """Whether the job, replica and task in a name, if any, are those of the device; a single process has none."""
    pairs = (
        (spec.job, found.job or "localhost"),
        (spec.replica, found.replica or 0),
        (spec.task, found.task or 0),
    )
    return all(given is None or given == there for given, there in pairs)
