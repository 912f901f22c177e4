"""What ranks print reaches the user, although another process holds their output open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = 60  # seconds

# The launcher, which does not wait for output once the ranks have ended.
LAUNCHER = """
import sys
from collectives.launch import _ranks, local
_ranks._DRAIN = 0.0
sys.exit(local.run_local([sys.executable, sys.argv[1]], 1))
"""
# A rank that stops the launcher, prints what a pipe just holds, and leaves a server behind, which has the output of the
# rank and has the launcher go on when the rank has ended.
RANK = """
import os, signal, subprocess, sys
server = '''
import os, select, signal, sys
ended = os.pidfd_open(int(sys.argv[1]))
print("ready", file=sys.stderr, flush=True)
select.select([ended], [], [])
os.kill(int(sys.argv[2]), signal.SIGCONT)
signal.pause()
'''
launcher = os.getppid()
left = subprocess.Popen(
    [sys.executable, "-c", server, str(os.getpid()), str(launcher)], start_new_session=True, stderr=subprocess.PIPE
)
left.stderr.readline()
print("server", left.pid, flush=True)
os.kill(launcher, signal.SIGSTOP)
os.write(1, b"y\\n" * 30_000 + b"the end")
"""


def test_nothing_is_lost_that_was_printed_before_the_end(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    done = subprocess.run([sys.executable, "-c", LAUNCHER, program], capture_output=True, text=True, timeout=LIMIT)
    first, *rest = done.stdout.splitlines()
    os.kill(int(first.split()[-1]), signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert rest == ["[0] y"] * 30_000 + ["[0] the end"]
