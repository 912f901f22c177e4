"""Communication hooks for DistributedDataParallel that send gradients in half the bytes.

>>> model = DistributedDataParallel(model)
>>> model.register_comm_hook(None, collectives.torch.hooks.bfloat16_hook)

torch's own hooks for that divide before they send, and so round twice on the way; here the engine adds up 16-bit floats
in float32 and rounds once in each step of the reduction, and the mean is taken there.
"""

# torch compares the annotations of hooks with its classes, so they are no strings here.

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["bfloat16_hook", "float16_hook"]


def _compressed(process_group: Any, bucket: Any, dtype: torch.dtype) -> torch.futures.Future[torch.Tensor]:
    group = dist.group.WORLD if process_group is None else process_group
    gradient = bucket.buffer()
    sent = gradient.to(dtype)
    work = dist.all_reduce(sent, op=dist.ReduceOp.AVG, group=group, async_op=True)

    def back(future: torch.futures.Future[Any]) -> torch.Tensor:
        future.value()  # raises the error of the call
        gradient.copy_(sent)
        return gradient

    return work.get_future().then(back)


def float16_hook(process_group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends gradients as float16; values above 65504 become infinite.

    Args:
        process_group: the ``state`` of ``register_comm_hook``: the group, or None for the default one.
        bucket: of gradients.
    """
    return _compressed(process_group, bucket, torch.float16)


def bfloat16_hook(process_group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends gradients as bfloat16, which has the range of float32 and 8 bits of its precision; else as the other."""
    return _compressed(process_group, bucket, torch.bfloat16)
