"""The backend "collectives" of torch.distributed.

>>> torch.distributed.init_process_group("collectives")

PyTorch finds it by itself when it is imported (from 2.5 on); with ``TORCH_DEVICE_BACKEND_AUTOLOAD=0``, or an older
PyTorch, import this module first. ``collectives.torch.hooks`` has communication hooks for DistributedDataParallel.
``docs/torch.md`` is the guide.

Raises:
    ImportError: at import, where PyTorch cannot be imported.
"""

from __future__ import annotations

from typing import Any

from .._distribution import install_command as _install_command

try:
    import torch  # noqa: F401 (registers the backend by its entry point, where there is one)
except ImportError as error:
    raise ImportError(
        f"collectives.torch needs PyTorch, which cannot be imported here ({error}): {_install_command('torch')}"
    ) from error

from ._entry import register

register()

__all__ = ["dump_flight_recorder"]


def __getattr__(name: str) -> Any:
    # Not imported above: this module is loaded while torch is, and has no torch.distributed yet.
    if name == "dump_flight_recorder":
        from ._flight_recorder import dump_flight_recorder

        return dump_flight_recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
