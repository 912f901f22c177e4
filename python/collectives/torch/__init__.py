"""What needs PyTorch: so far the store of torchrun. Arrays of PyTorch are taken everywhere, without this."""
