"""The bench for users: collectives between the ranks of a job, with the options and columns of nccl-tests.

    collectives run -n 4 -m collectives.bench all_reduce -b 8 -e 128M
    torchrun --nproc-per-node 4 -m collectives.bench all_gather -d bfloat16
    python -m collectives.bench --ranks 4

docs/bench.md explains options and columns. The parts that the developers' suite in bench/ needs as well live here:
sizes, checks of results, factors of bandwidth and how numbers are written.
"""
