"""The secret of a job: where it comes from, and where it never shows."""

import base64
import contextlib
import os
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from collectives import _core
from collectives._startup.environment import read_environment, read_token
from collectives._startup.published import publish, read_published
from joining import LIMIT, job
from namespaces import REASON, ip

JOB = {"COLLECTIVES_RANK": "1", "COLLECTIVES_SIZE": "2", "COLLECTIVES_RENDEZVOUS": "127.0.0.1:29400"}
FILE = "COLLECTIVES_TOKEN_FILE"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text("  the token\n")
    path.chmod(0o600)
    return path


def test_a_file(file):
    assert read_environment(environ={**JOB, FILE: str(file)}).token == b"the token"
    assert read_token(environ={FILE: str(file)}) == b"the token"


def test_the_argument_wins_over_the_variable_and_that_over_the_file(file):
    environ = {**JOB, FILE: str(file), "COLLECTIVES_TOKEN": "of the variable"}
    assert read_environment(environ=environ).token == b"of the variable"
    assert read_environment(environ=environ, token="of the argument").token == b"of the argument"


def test_a_world_of_one_needs_no_file():
    assert read_environment(environ={FILE: "/nowhere"}).token == b""


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_modes_that_are_private(file, mode):
    file.chmod(mode)
    assert read_token(environ={FILE: str(file)}) == b"the token"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o622, 0o660, 0o601, 0o777])
def test_a_file_that_others_can_get_at_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(ValueError) as caught:
        read_environment(environ={**JOB, FILE: str(file)})
    for part in (FILE, repr(str(file)), f"mode is {mode:04o}", "chmod 600 token"):
        assert part in str(caught.value)
    assert "the token" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs root to give files away")
def test_the_owner_of_a_file():
    """One of root may be readable to a group, one of the user may not, and one of another user is not read at all."""
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which is closed to other users
        os.chmod(folder, 0o755)
        file = Path(folder) / "token"
        file.write_text("the token")
        file.chmod(0o440)
        assert read_token(environ={FILE: str(file)}) == b"the token"
        file.chmod(0o600)
        os.chown(file, 12345, -1)
        with pytest.raises(ValueError, match="belongs to user 12345"):
            read_token(environ={FILE: str(file)})
        assert as_user(12345, file) == b"the token"
        file.chmod(0o640)
        with pytest.raises(ValueError, match="mode is 0640, so others can get at it; at most 0600"):
            as_user(12345, file)


def as_user(user, file):
    """`read_token` with another effective user. Raises what it raises."""
    os.seteuid(user)
    try:
        return read_token(environ={FILE: str(file)})
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("what", ["missing", "folder", "empty", "large", "pipe", "null"])
def test_files_that_are_none(file, what):
    path = str(file)
    if what == "missing":
        file.unlink()
    elif what == "folder":
        path = str(file.parent)
    elif what == "empty":
        file.write_text(" \n")
    elif what == "large":
        file.write_text("x" * (1 << 17))
    elif what == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)  # without a writer: it must not wait for one
    else:
        path = "a\0b"
    with pytest.raises(ValueError, match=FILE):
        read_token(environ={FILE: path})


def test_a_job_by_a_file(file):
    with job(3, token="", token_file=str(file)) as ranks:
        assert [rank.hear()["rank"] for rank in ranks] == [0, 1, 2]
    with job(2, token=["", "the token"], token_file=[str(file), ""]) as ranks:
        assert [rank.hear()["rank"] for rank in ranks] == [0, 1]


class TestStores:
    """What rank 0 leaves in a launcher's store."""

    def test_a_token_is_made(self):
        listener, where, token, text = publish("127.0.0.1", 1, b"")
        with listener:
            assert where == f"127.0.0.1:{listener.getsockname()[1]}"
            assert len(token) == 64
            assert read_published(text, b"") == (where, token)
        other, _, another, _ = publish("127.0.0.1", 1, b"")
        other.close()
        assert another != token

    def test_a_token_that_was_given_stays_out(self):
        listener, where, token, text = publish("127.0.0.1", 1, b"mine alone")
        listener.close()
        assert token == b"mine alone"
        assert "mine" not in text
        assert read_published(text, b"mine alone") == (where, b"mine alone")

    @pytest.mark.parametrize(("zero", "one"), [(b"given", b""), (b"", b"given")])
    def test_a_token_for_some_ranks_only(self, zero, one):
        listener, _, _, text = publish("127.0.0.1", 1, zero)
        listener.close()
        who = "rank 0 was given a token" if zero else "this rank was given a token"
        with pytest.raises(ValueError, match=who):
            read_published(text, one)

    @pytest.mark.parametrize("text", ["", "[]", "7", '{"address": "secret"}', '{"token": "secret"}'])
    def test_something_else_in_the_store(self, text):
        with pytest.raises(ValueError, match="store has something else") as caught:
            read_published(text, b"")
        assert "secret" not in str(caught.value)

    def test_an_address_of_another_machine(self):
        """The store is elsewhere: rank 0 listens where it would go there from."""
        listener, where, _, _ = publish("127.77.0.1", 1, b"")  # all of 127.0.0.0/8 can be bound, so it is used
        listener.close()
        assert where.startswith("127.77.0.1:")
        if os.path.exists("/proc/net/route") and len(Path("/proc/net/route").read_text().splitlines()) > 1:
            listener, where, _, _ = publish("192.0.2.1", 9, b"")
            with listener:
                assert listener.getsockname()[0] == where.rpartition(":")[0] != "192.0.2.1"


# --- where it never shows -------------------------------------------------------------------------------------------

CAPTURE = """
import select, socket, sys
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
sock.bind(("lo", 0))
print("ready", flush=True)
with open(sys.argv[1], "wb") as file:
    while True:
        ready, _, _ = select.select([sock, sys.stdin], [], [])
        if sock in ready:
            file.write(sock.recv(1 << 17))
        elif sys.stdin in ready:
            break
"""

PROGRAM = """
import glob, logging, os, sys
logging.basicConfig(level=logging.DEBUG)
import numpy as np
import collectives
token = os.environ["COLLECTIVES_TOKEN"]
with open(os.path.join(sys.argv[1], "token"), "w") as file:
    file.write(token)
wrong = sys.argv[2] == "wrong" and os.environ["COLLECTIVES_RANK"] == "1"
comm = collectives.init(token="another one" if wrong else None)
shown = []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown += [path] * (token.encode() in open(path, "rb").read())
    except OSError:
        pass  # it has ended
assert not shown, "on a command line"
assert comm.all_reduce(np.ones(3))[0] == 3
print(repr(comm), comm.bytes_by_transport())
comm.close()
print("done")
"""


def forms(token):
    """How it might show, in pieces that are short enough to be in one packet."""
    raw = token.encode()
    whole = [raw, raw.hex().encode(), base64.b64encode(raw), base64.b64encode(b"x" + raw), bytes.fromhex(token)]
    return {text[begin : begin + 16] for text in whole for begin in range(0, len(text) - 16, 8)}


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.parametrize("how", ["right", "wrong"])
def test_the_token_is_not_on_the_wire_nor_in_any_text(tmp_path, how):
    """A job of the launcher, and all packets of it; also when ranks have different tokens."""
    name, packets = f"clv-wire-{os.getpid()}", tmp_path / "packets"
    (tmp_path / "program.py").write_text(PROGRAM)
    with contextlib.ExitStack() as stack:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "set", "lo", "up")
        inside = ["ip", "netns", "exec", name, sys.executable]
        capture = stack.enter_context(
            subprocess.Popen(
                [*inside, "-c", CAPTURE, packets], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        stack.callback(capture.kill)
        assert capture.stdout.readline() == "ready\n"
        command = ["-m", "collectives", "run", "-n", "3", "--transport", "tcp", "--timeout", str(LIMIT)]
        done = subprocess.run(
            [*inside, *command, str(tmp_path / "program.py"), str(tmp_path), how],
            capture_output=True,
            text=True,
            timeout=4 * LIMIT,
        )
        capture.stdin.close()
        capture.wait(LIMIT)
    output = done.stdout + done.stderr
    if how == "right":
        assert done.returncode == 0, output
        assert output.count("done") == 3
    else:
        assert done.returncode != 0
        assert "different tokens" in output
    token = (tmp_path / "token").read_text()
    assert re.fullmatch("[0-9a-f]{64}", token)
    seen = packets.read_bytes()
    assert b'"proof":"' in seen, "nothing was captured"
    for form in forms(token):
        assert form not in seen
        assert form not in output.encode()


def test_a_token_would_be_found():
    token = secrets.token_hex(32)
    hidden = base64.b64encode(b"?" * 3 + token.encode())
    assert any(form in hidden for form in forms(token))
    assert not any(form in secrets.token_hex(4096).encode() for form in forms(token))


def test_no_variable_shows_a_secret():
    """Of the variables only the token is one; the files are named, not read, where variables are printed."""
    names = {entry["name"] for entry in _core.environment_variables()}
    assert {name for name in names if "TOKEN" in name} == {"COLLECTIVES_TOKEN", FILE}
