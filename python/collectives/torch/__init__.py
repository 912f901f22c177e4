"""The part that imports PyTorch: so far the store of torchrun. Calls accept tensors of PyTorch without it."""
