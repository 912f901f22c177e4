"""docs/first_minutes.md has the commands of the README, and tools/first_minutes.py replaces what differs between runs.

`.ci/run readme_first` runs them, which takes as long as an installation.
"""

from __future__ import annotations

from pathlib import Path

import first_minutes

FOLDER = Path("/tmp/first-minutes-1")


def test_the_page_has_the_commands_of_the_readme() -> None:
    page = first_minutes.PAGE.read_text(encoding="utf-8")
    name, text = first_minutes.program()
    assert page.startswith(first_minutes.BEFORE), "python tools/first_minutes.py --write"
    assert f"This is `{name}`:\n\n```python\n{text}```\n" in page
    for command in first_minutes.commands():
        assert f"```console\n$ {command}\n" in page


def test_what_pip_says_of_downloads_is_replaced() -> None:
    said = f"""\
Looking in links: /opt/wheels
Processing {FOLDER}/collectives
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
Collecting numpy>=1.24 (from collectives==0.1.0)
Building wheels for collected packages: collectives
  Building wheel for collectives (pyproject.toml): still running...
  Building wheel for collectives (pyproject.toml): finished with status 'done'
Successfully built collectives
Successfully installed collectives-0.1.0 ml_dtypes-0.6.0 numpy-2.4.6rc1
"""
    assert first_minutes.normalised(said, FOLDER) == [
        "...",
        "Processing ~/collectives",
        "...",
        "Building wheels for collected packages: collectives",
        "...",
        "  Building wheel for collectives (pyproject.toml): finished with status 'done'",
        "Successfully built collectives",
        "Successfully installed collectives-# ml_dtypes-# numpy-#",
    ]


def test_times_and_machines_are_replaced() -> None:
    said = f"""\
# collectives 0.1.0 from {FOLDER}/env/lib/python3.11/site-packages/collectives, avx2; AMD EPYC, 2 cores
# all_reduce, 2 ranks, transport auto, private memory, 0.83 s per row
   size     count  type     level   algorithm        placement  median     p99   algbw   busbw     wrong
         elements                                                   us      us    GB/s    GB/s  elements
    8 B         2  float32  python  auto [one_shot]  far         0.761   0.761  0.0105  0.0105         0
    8 B         2  float32  python  auto [one_shot]  near        0.061   0.061  0.0105  0.0105         0
 64 MiB  16777216  float32  python  auto [ring]      unknown     40019  143884    1.68    1.68         3

38 of 1131 blocks dropped: the cores moved within them
rank 0 was interrupted in 73% of the blocks: other programs run, and times are too long

all_reduce, 2 ranks, shm: 0.761 us at 8 B, 1.68 GB/s busbw at 64 MiB, 0 wrong
"""
    assert first_minutes.normalised(said, FOLDER) == [
        "# collectives # from ~/env/lib/python3.#/site-packages/collectives, ...",
        "# all_reduce, 2 ranks, transport auto, private memory, # s per row",
        "   size     count  type     level   algorithm   placement  median     p99   algbw   busbw     wrong",
        "         elements                                              us      us    GB/s    GB/s  elements",
        "    8 B         2  float32  python  auto [...]  ...             #       #       #       #         0",
        " 64 MiB  16777216  float32  python  auto [...]  ...             #       #       #       #         3",
        "",
        "all_reduce, 2 ranks, shm: # us at 8 B, # GB/s busbw at 64 MiB, 0 wrong",
    ]


def test_ranks_are_in_order() -> None:
    said = "collectives run: OMP_NUM_THREADS is 1 in each rank (2 cores, 4 ranks)\n[10] a\n[2] b\n[2] a\nend\n"
    assert first_minutes.normalised(said, FOLDER) == [
        "collectives run: OMP_NUM_THREADS is # in each rank (# cores, 4 ranks)",
        *("[2] b", "[2] a", "[10] a", "end"),
    ]
