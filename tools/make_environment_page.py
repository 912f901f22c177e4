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

An empty variable counts as not set. Arguments of `collectives.init` win over variables. A value that is not
acceptable is a `ValueError` that names the variable and says what is accepted.
"""

AFTER = """\
A variable that begins with `COLLECTIVES_` and is not in this table is probably a typing error: `collectives.init` gives
one `RuntimeWarning` that names all of them, each with the variable that it resembles most, and goes on without them.
`collectives info` prints what is set, except for the token, whose value it does not show.

[security.md](security.md) has more about the token, TLS and the choice of interfaces.

`collectives run` and `collectives.spawn` set the rank, the size, the rendezvous, the token and the descriptors for the
processes they start. Under torchrun none of these need be set: where `COLLECTIVES_RANK`, `COLLECTIVES_SIZE` and
`COLLECTIVES_RENDEZVOUS` are all unset, and `init` is not given them, torchrun's own variables and store supply them,
and a token unless one is set. Both launchers also set `OMP_NUM_THREADS` to the cores of the host divided by the ranks,
where it is not set and there are several ranks, and say so in a line on stderr.

Where another launcher has started several processes (`HOROVOD_SIZE`, `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE`,
`SLURM_STEP_NUM_TASKS`, `FLUX_JOB_SIZE` or `WORLD_SIZE` is above one) and no size is given, `init` raises `ValueError`
rather than making each process a world of its own; so does a rank or a rendezvous without a size. `init(size=1)` is a
world of one.

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
