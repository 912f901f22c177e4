#!/bin/bash
# 16 ranks on two hosts, by Open MPI; with `mpiexec` of MPICH or Intel MPI: -hosts node1,node2 -ppn 8 in place of --host.
# Nothing has to be set: the ranks meet by the store of the launcher.
mpirun -n 16 --host node1:8,node2:8 python train.py
