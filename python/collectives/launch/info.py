"""Describes this installation and what it found on the machine, without importing any framework."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from .._distribution import library_version
from .._startup.environment import unknown_variables, variables_set
from .._startup.interfaces import interface_addresses
from .._startup.system import memfd_create, pidfd_open

_FRAMEWORKS = {  # module: names of its distributions
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm"),
    "torch": ("torch",),
    "jax": ("jax",),
}
_COLLECTIVES = (
    *("all_reduce", "broadcast", "reduce", "scan", "exscan", "barrier"),
    *("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
)


def info() -> dict[str, Any]:
    """Version, instruction set, compiler, variables, algorithms, transports, CUDA, NCCL and frameworks.

    Returns:
        a dictionary of JSON values. Optional parts are ``{"found": bool, "version": str, "where": str, "why": str}``
        (keys that do not apply are left out); ``why`` says why a part is missing and how to get it.
        ``"environment"`` has the variables of the library that are set, with their values (not that of the token), and
        ``"unknown_environment"`` the unknown ones, each with the one that was probably meant or ``""``.
    """
    found: dict[str, Any] = {
        "version": library_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs",
        **_core(),
        "environment": variables_set(),
        "unknown_environment": unknown_variables(),
        "algorithms": _algorithms(),
        "transports": _transports(),
        "cuda": _cuda(),
        "cuda_kernels": _cuda_kernels(),
        "nccl": _nccl(),
    }
    for module, distributions in _FRAMEWORKS.items():
        found[module] = _framework(module, distributions)
    return found


def format_info(found: dict[str, Any]) -> str:
    """The text that ``collectives info`` prints."""
    lines = [
        f"collectives {found['version']}, Python {found['python']}, {found['platform']}",
        f"  instruction set  {found['isa'] or 'unknown'}",
        f"  built by         {', '.join(f'{key} {value}' for key, value in found['build'].items()) or 'unknown'}",
    ]
    if "core_error" in found:
        lines.append(f"  core             missing: {found['core_error']}")
    lines.append("environment")
    lines += [f"  {name:<27}  {value}" for name, value in found["environment"].items()]
    for name, meant in found["unknown_environment"].items():
        lines.append(f"  {name:<27}  unknown, has no effect{f'; did you mean {meant}?' if meant else ''}")
    if not found["environment"] and not found["unknown_environment"]:
        lines.append("  no variable of collectives is set")
    lines.append("algorithms")
    lines += [f"  {collective:<15}  {', '.join(names)}" for collective, names in found["algorithms"].items()]
    for title, entries in (
        ("transports", found["transports"]),
        ("found", {name: found[name] for name in ("cuda", "cuda_kernels", "nccl", *_FRAMEWORKS)}),
    ):
        lines.append(title)
        for name, entry in entries.items():
            state = "yes" if entry["found"] else "no "
            details = [entry[key] for key in ("version", "where", "why") if entry.get(key)]
            lines.append(f"  {name:<15}  {state}  {', '.join(details)}".rstrip())
    return "\n".join(lines)


def _core() -> dict[str, Any]:
    try:
        core: Any = importlib.import_module("collectives._core")
        return {"isa": core.isa(), "build": dict(core.build_info())}
    except ImportError as error:
        return {"isa": "", "build": {}, "core_error": f"{error}; build it with `pip install .`"}


def _algorithms() -> dict[str, list[str]]:
    """By collective, the names that ``algorithm=`` accepts besides "auto"."""
    try:
        core: Any = importlib.import_module("collectives._core")
    except ImportError:
        return {}
    return {collective: [entry["name"] for entry in core._algorithms(collective)] for collective in _COLLECTIVES}


def _transports() -> dict[str, Any]:
    addresses = [f"{name} {address}" for name, address in interface_addresses()]
    shared: dict[str, Any] = {"found": True, "where": "memfd over an abstract Unix socket"}
    try:
        os.close(memfd_create("collectives-info"))
    except OSError as error:
        why = f"memfd_create fails: {error}; it needs Linux 3.17, and a sandbox may refuse it. Ranks use TCP"
        shared = {"found": False, "why": why}
    try:
        os.close(pidfd_open(os.getpid()))
    except OSError as error:
        shared["why"] = f"pidfd_open fails ({error}), so the death of a peer is noticed by its connection only"
    by_reach: dict[str, dict[str, Any]] = {
        "process": {"found": True, "where": "threads of one process"},
        "host": shared,
        "network": {
            "found": True,
            "where": "; ".join(addresses) if addresses else "loopback only, no other interface is up",
        },
    }
    try:
        core: Any = importlib.import_module("collectives._core")
    except ImportError:
        return {}
    return {name: by_reach[about["reach"]] for name, about in core.transports().items()}


def _library(names: tuple[str, ...]) -> tuple[ctypes.CDLL | None, str, str]:
    """A shared library and the name by which it was found; or None, and why the last name was not found."""
    reason = ""
    for name in names:
        try:
            return ctypes.CDLL(name), name, ""
        except OSError as error:
            reason = str(error)
    return None, "", reason


def _cuda() -> dict[str, Any]:
    library, name, reason = _library(("libcuda.so.1",))
    if library is None:
        return {"found": False, "why": f"{reason}. It comes with the NVIDIA driver; without it arrays stay on the host"}
    devices = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    version = ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(version))
    if code != 0:
        return {"found": False, "where": name, "why": f"cuDriverGetVersion gives error {code}; check `nvidia-smi`"}
    entry: dict[str, Any] = {
        "found": True,
        "version": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "where": f"{name}, {devices} device{'s' * (devices != 1)} in /dev",
        "devices": devices,
    }
    if devices == 0:
        entry["why"] = "the driver is there but no /dev/nvidia<n>; start the container with access to the devices"
    return entry


def _cuda_kernels() -> dict[str, Any]:
    try:
        core: Any = importlib.import_module("collectives._core")
    except ImportError as error:
        return {"found": False, "why": str(error)}
    status: dict[str, Any] = core._device_status()
    if not status["available"]:
        return {"found": False, "why": status["reason"]}
    runtime = status["runtime"]
    return {
        "found": True,
        "version": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "where": f"{status['library']} on {', '.join(status['devices'])}",
    }


def _nccl() -> dict[str, Any]:
    try:
        status: dict[str, Any] = importlib.import_module("collectives._devices.nccl").status()
    except ImportError as error:
        return {"found": False, "why": str(error)}
    where = f"{status['path']} ({status['where']})" if status["path"] else ""
    entry = {"found": status["usable"], "version": status["version"], "where": where, "why": status["why"]}
    return {key: value for key, value in entry.items() if value != ""}


def _framework(module: str, distributions: tuple[str, ...]) -> dict[str, Any]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a module of that name without a spec is already imported
        spec = None
    if spec is None:
        return {"found": False, "why": f"no module {module!r} in this Python; `pip install {distributions[0]}`"}
    version = ""
    for name in distributions:
        try:
            version = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    where = str(Path(spec.origin).parent) if spec.origin else ""
    return {"found": True, "version": version or "unknown version", "where": where}
