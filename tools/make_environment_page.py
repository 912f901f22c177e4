"""Writes docs/environment.md from the table of environment variables in csrc/core/environment.h, or checks it.

python tools/make_environment_page.py           writes the page
python tools/make_environment_page.py --check   fails when the page is not what this would write
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from collectives import _core

PAGE = Path(__file__).resolve().parent.parent / "docs" / "environment.md"

BEFORE = """\
<!-- Written by tools/make_environment_page.py from the table in csrc/core/environment.h; do not edit. -->

# Environment variables

Set these variables for each process of a job, where its program does not say the same by arguments of
`collectives.init`: who it is among the ranks, how ranks find each other, how long they wait, and what carries the data.
Arguments win over variables. An empty variable counts as not set. A value that is not acceptable is a `ValueError` that
names the variable and says what is accepted.
"""

AFTER = """\
A variable that begins with `COLLECTIVES_` and is not in this table is probably a typing error: `collectives.init` gives
one `RuntimeWarning` that names all of them, each with the variable that it resembles most, and goes on without them.
`collectives info` prints what is set, except for the token, whose value it does not show.

[security.md](security.md) has more about the token, TLS and the choice of interfaces.

`collectives run` and `collectives.spawn` set the rank, the size, the rendezvous, the token and the descriptors for the
processes they start. Under torchrun, mpirun and others none of these need be set: [running.md](running.md) says what
each launcher supplies, and what is to be set under those that supply less. `collectives run` and torchrun also set
`OMP_NUM_THREADS` to the cores of the host divided by the ranks, where there are several ranks and neither it nor
`MKL_NUM_THREADS` or `OPENBLAS_NUM_THREADS` is set, and say so in a line on stderr.

Where a launcher has started several processes that cannot meet by what it says, `init` raises `ValueError` rather than
making each process a world of its own; so does a rank or a rendezvous without a size. `init(size=1)` is a world of one.

**On loopback a token may be missing, but then any user of the machine can join the job and run code in it**
([security.md](security.md#without-a-token)); rank 0 warns of that.
"""


def page() -> str:
    """The text of the page."""
    lines = ["| variable | accepted | default | meaning | read by |", "| --- | --- | --- | --- | --- |"]
    for entry in _core.environment_variables():
        cells = [f"`{entry['name']}`", entry["accepted"], entry["default"], entry["meaning"], f"`{entry['reader']}`"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([BEFORE, *lines, "", AFTER])


def main() -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = page()
    if not parser.parse_args().check:
        PAGE.write_text(wanted)
        return 0
    found = PAGE.read_text() if PAGE.exists() else ""
    lines = difflib.unified_diff(found.splitlines(), wanted.splitlines(), PAGE.name, "what the table has", lineterm="")
    print("\n".join(lines) if found != wanted else f"{PAGE.name} matches the table")
    return int(found != wanted)


if __name__ == "__main__":
    sys.exit(main())
