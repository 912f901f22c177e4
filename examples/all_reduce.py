"""Averages an array over all ranks.

collectives run -n 4 examples/all_reduce.py
"""

import collectives
import numpy as np

comm = collectives.init()
gradient = np.full(1_000_000, comm.rank, np.float32)
comm.all_reduce(gradient, op="avg")
print(f"rank {comm.rank} of {comm.size}: mean of the ranks {gradient[0]}")
comm.close()
