"""Calls on arrays in the memory of devices: by NCCL, by direct access to peer memory, or staged through the host."""
