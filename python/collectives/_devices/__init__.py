"""Calls on arrays in the memory of devices: through NCCL, through each other's memory, or by way of the host."""
