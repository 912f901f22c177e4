"""What ``import torch`` calls, by the entry point of this package in the group ``torch.backends``."""

from __future__ import annotations

from typing import Any

NAME = "collectives"


def register() -> None:
    """Tells torch.distributed, where this build of PyTorch has it, that there is this backend."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=["cpu", "cuda"])


def _make(options: Any, backend_options: Any) -> Any:
    """Makes a group, on each of its members. The imports are here since most programs with PyTorch make none."""
    from ._backend import make

    return make(options, backend_options)
