"""The socket by which ranks of one host learn where rank 0 listens: order, strangers, other users, deadlines."""

import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from collectives._startup.stores import one_host
from collectives._startup.wire import Deadline

TEXT = "0123abcd" * 40
NOBODY = 65534
AS_NOBODY = "import os, socket, sys; os.setgid({0}); os.setuid({0}); exec(sys.argv[1])"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="it needs root, to be another user as well")


@pytest.fixture
def job():
    return f"test-{secrets.token_hex(8)}"


@pytest.mark.parametrize("size", [1, 2, 3, 17])
def test_all_ranks_hear_rank_0(job, size):
    """Also those that come long before it."""
    with ThreadPoolExecutor(size) as pool:
        others = [pool.submit(one_host.broadcast, job, size, None, Deadline(30)) for _ in range(size - 1)]
        assert not any(other.done() for other in others)
        assert one_host.broadcast(job, size, TEXT, Deadline(30)) == TEXT
        assert [other.result() for other in others] == [TEXT] * (size - 1)


def test_rank_0_that_does_not_come_is_an_error_at_the_deadline(job):
    with pytest.raises(one_host.OneHostError, match=r"did not come within 0\.3 s"):
        one_host.broadcast(job, 2, None, Deadline(0.3))


def test_a_name_that_is_taken(job):
    one_host.broadcast(job, 2, TEXT, Deadline(5))
    with pytest.raises(ValueError, match="cannot be made"):
        one_host.broadcast(job, 2, TEXT, Deadline(5))
    assert one_host.broadcast(job, 2, None, Deadline(5)) == TEXT


def as_nobody(program):
    command = [sys.executable, "-c", AS_NOBODY.format(NOBODY), program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@needs_root
def test_another_user_hears_nothing(job):
    one_host.broadcast(job, 2, TEXT, Deadline(5))
    name = one_host.name_of(job)
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({name!r}); print(len(s.recv(9)))"
    with as_nobody(program) as stranger:
        assert stranger.communicate(timeout=30)[0] == "0\n"
    assert one_host.broadcast(job, 2, None, Deadline(5)) == TEXT  # it did not count


@needs_root
def test_another_user_says_nothing(job):
    name = one_host.name_of(job)
    program = (
        f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind({name!r}); s.listen(); "
        "print('here', flush=True); c, _ = s.accept(); c.send(b'00'); sys.stdin.read()"
    )
    with as_nobody(program) as stranger:
        assert stranger.stdout.readline() == "here\n"
        with pytest.raises(one_host.OneHostError, match=f"user {NOBODY} listens in the place of rank 0"):
            one_host.broadcast(job, 2, None, Deadline(5))
        stranger.communicate(timeout=30)
