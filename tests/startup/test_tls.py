"""TLS on the rendezvous, with real certificates: who is let in, and which error the others get."""

import contextlib
import logging
import socket
import ssl
import time
from pathlib import Path

import pytest
from certificates import DAY, Authority
from collectives._startup import wire
from collectives._startup.environment import read_environment
from collectives._startup.tls import Tls
from collectives._startup.wire import RefusedError, WireError
from collectives.errors import MismatchError
from joining import job
from test_rendezvous import LIMIT, TOKEN, Rank, environment, finish, listener  # noqa: F401  (listener is a fixture)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(folder, "authority"), Authority(folder, "other")
    return {
        "first": authority.issue("first"),
        "second": authority.issue("second"),
        "expired": authority.issue("expired", -2 * DAY, -1 * DAY),
        "future": authority.issue("future", DAY, 2 * DAY),
        "stranger": other.issue("stranger"),
        "middle": authority.issue("middle"),
        # Shows the right kind of certificate, and trusts the wrong authority; and one that it welcomes.
        "other way": (*authority.issue("other-way")[:2], other.file),
        "welcome": (*other.issue("welcome")[:2], authority.file),
        "encrypted": authority.issue("encrypted", password=b"secret"),
    }


@pytest.mark.parametrize("size", [2, 5])
def test_ranks_meet(listener, certificates, size):  # noqa: F811
    """Large values too, which fill buffers in both directions."""
    files = [certificates["first"], certificates["second"]]
    text = "x" * 2_000_000
    ranks = [
        Rank(environment(listener, rank, size, tls=files[rank % 2]), lambda meeting: meeting.exchange(text))
        for rank in range(size)
    ]
    finish(*ranks)
    assert [rank.error for rank in ranks] == [None] * size
    assert all(rank.result == [text] * size for rank in ranks)


def test_a_job(certificates):
    """From the variables to connected descriptors, with the data connections beside them."""
    cert, key, ca = certificates["first"]
    with job(3, transport="tcp", tls_cert=cert, tls_key=key, tls_ca=ca) as ranks:
        reports = [rank.hear() for rank in ranks]
    assert [report["host"] for report in reports] == [[0, 1, 2]] * 3
    assert [report["descriptors"] for report in reports] == [2] * 3


def test_certificate_and_key_in_one_file(listener, certificates, tmp_path):  # noqa: F811
    cert, key, ca = certificates["first"]
    both = tmp_path / "both.pem"
    both.write_text(Path(key).read_text() + Path(cert).read_text())
    both.chmod(0o600)
    variables = {"COLLECTIVES_TLS_CERT": str(both), "COLLECTIVES_TLS_CA": ca}
    assert read_environment(environ=variables).tls == (str(both), str(both), ca)
    ranks = finish(*(Rank(environment(listener, rank, 2, tls=(str(both), str(both), ca))) for rank in range(2)))
    assert [rank.result for rank in ranks] == [[0, 1]] * 2


REFUSED = [
    # rank 0, rank 1, what rank 1 says, what the log of rank 0 has, a rank 1 that is welcome
    ("first", "stranger", "its certificate is not accepted here", "refused TLS with this side", "second"),
    ("other way", "first", "refused TLS with this side (unknown ca)", "is not accepted", "welcome"),
    ("first", "expired", "refused TLS with this side (certificate expired)", "certificate has expired", "second"),
    ("expired", "first", "certificate has expired", "refused TLS with this side", "careless"),
    ("first", "future", "refused TLS with this side", "certificate is not yet valid", "second"),
    ("first", None, "TLS is needed there: set COLLECTIVES_TLS_CERT here too", "does not speak TLS", "second"),
    (None, "first", "does not speak TLS, and COLLECTIVES_TLS_CERT is set on this side", "it speaks TLS", None),
]


@pytest.mark.parametrize(
    ("zero", "one", "said", "logged", "welcome"), REFUSED, ids=[f"{row[0]}-{row[1]}" for row in REFUSED]
)
def test_a_rank_is_refused_at_once_and_told_why(
    listener,  # noqa: F811
    certificates,
    caplog,
    monkeypatch,
    zero,
    one,
    said,
    logged,
    welcome,
):
    caplog.set_level(logging.WARNING, logger="collectives")
    hub = Rank(environment(listener, 0, 2, tls=certificates.get(zero)))
    (wrong,) = finish(Rank(environment(listener, 1, 2, tls=certificates.get(one))))
    assert isinstance(wrong.error, MismatchError), wrong.error
    assert said in str(wrong.error)
    assert f"127.0.0.1:{listener.getsockname()[1]}" in str(wrong.error)
    assert wrong.seconds < LIMIT / 2
    assert hub.is_alive(), "a stranger must not disturb the job"
    if welcome == "careless":  # no other rank would go on with a rank 0 whose certificate has expired
        monkeypatch.setattr(Tls, "wrap_connecting", wrap_carelessly)
        welcome = "second"
    finish(hub, Rank(environment(listener, 1, 2, tls=certificates.get(welcome))))
    assert hub.result == [0, 1]
    refusals = [record.getMessage() for record in caplog.records if "refused a connection" in record.getMessage()]
    assert len(refusals) == 1
    assert logged in refusals[0]


def test_a_client_without_a_certificate(listener, certificates, caplog):  # noqa: F811
    caplog.set_level(logging.WARNING, logger="collectives")
    hub = Rank(environment(listener, 0, 2, tls=certificates["first"]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(listener.getsockname(), timeout=LIMIT) as plain,
        context.wrap_socket(plain) as sock,  # in TLS 1.3 its own part is done before that error arrives
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        sock.recv(1)
    finish(hub, Rank(environment(listener, 1, 2, tls=certificates["second"])))
    assert hub.result == [0, 1]
    assert "peer did not return a certificate" in caplog.text


def wrap_carelessly(tls, sock):
    tls._connecting.verify_mode = ssl.CERT_NONE
    return tls._connecting.wrap_socket(sock, do_handshake_on_connect=False)


def test_tls_is_no_token(listener, certificates):  # noqa: F811
    """A rank with a certificate still has to know the token."""
    hub = Rank(environment(listener, 0, 2, tls=certificates["first"]))
    (wrong,) = finish(Rank(environment(listener, 1, 2, tls=certificates["second"], token=b"another")))
    assert isinstance(wrong.error, MismatchError)
    assert "COLLECTIVES_TOKEN" in str(wrong.error)
    finish(hub, Rank(environment(listener, 1, 2, tls=certificates["second"])))
    assert hub.result == [0, 1]


def drive(*tasks):
    """Runs tasks in turn to their ends; gives what each returned or raised."""
    outcomes = {}
    end = time.monotonic() + LIMIT
    while len(outcomes) < len(tasks):
        assert time.monotonic() < end, "the tasks wait for each other"
        for number, task in enumerate(tasks):
            if number not in outcomes:
                try:
                    next(task)
                except StopIteration as stop:
                    outcomes[number] = stop.value
                except (OSError, WireError) as error:
                    outcomes[number] = error
    return [outcomes[number] for number in range(len(tasks))]


def relay(source, sink):
    """Passes on all that comes."""
    with contextlib.suppress(WireError, OSError):
        while True:
            data = yield from wire.receive_bytes(source, 1)
            yield from wire.send_bytes(sink, data)


@pytest.mark.parametrize("inside", [False, True])
def test_one_in_between_with_a_certificate_of_the_same_authority(certificates, inside):
    """It speaks TLS with both and passes every message on: the proofs cover the certificates, so they do not fit."""
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    with contextlib.ExitStack() as stack:
        for sock in (a, b, c, d):
            sock.setblocking(False)
        one, zero, middle = (Tls(certificates[name]) for name in ("first", "second", "middle"))
        ours, theirs = one.wrap_connecting(a), zero.wrap_listening(d)
        if inside:
            towards_one, towards_zero = middle.wrap_listening(b), middle.wrap_connecting(c)
            seen_by_one, _ = drive(one.connect(ours), middle.accept(towards_one))
            _, seen_by_zero = drive(middle.connect(towards_zero), zero.accept(theirs))
        else:  # it only passes on what is encrypted
            towards_one, towards_zero = b, c
            seen_by_one = seen_by_zero = None
        for sock in (ours, theirs, towards_one, towards_zero):
            stack.callback(sock.close)

        def connecting():
            binding = seen_by_one or (yield from one.connect(ours))
            try:
                yield from wire.authenticate_connecting(ours, TOKEN, {"rank": 1}, binding)
            finally:
                ours.close()
            return "authenticated"

        def listening():
            binding = seen_by_zero or (yield from zero.accept(theirs))
            try:
                yield from wire.authenticate_listening(theirs, TOKEN, lambda hello: None, binding)
            finally:
                theirs.close()
            return "authenticated"

        outcome = drive(connecting(), listening(), relay(towards_one, towards_zero), relay(towards_zero, towards_one))
    if inside:
        assert isinstance(outcome[0], RefusedError) and outcome[0].reason == "token"
        assert isinstance(outcome[1], WireError) and "does not know the token" in str(outcome[1])
    else:
        assert outcome[:2] == ["authenticated"] * 2


def test_a_silent_client_of_tls_holds_up_nobody(listener, certificates):  # noqa: F811
    """It stops in the middle of the handshake."""
    hub = Rank(environment(listener, 0, 2, tls=certificates["first"]))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=LIMIT))
            sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        (one,) = finish(Rank(environment(listener, 1, 2, tls=certificates["second"])))
        finish(hub)
    assert hub.result == one.result == [0, 1]


def bad_files(certificates, tmp_path):
    cert, key, ca = certificates["first"]
    readable = tmp_path / "readable.key"
    readable.write_text(Path(key).read_text())
    readable.chmod(0o644)
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    return {
        "no certificate": ((str(text), key, ca), ["COLLECTIVES_TLS_CERT", "text", "no certificate in PEM"]),
        "missing": (("/nowhere/a.crt", key, ca), ["COLLECTIVES_TLS_CERT", "/nowhere/a.crt", "No such file"]),
        "another key": ((cert, certificates["second"][1], ca), ["COLLECTIVES_TLS_CERT", "key values mismatch"]),
        "key for all": ((cert, str(readable), ca), ["COLLECTIVES_TLS_KEY", "mode is 0644", "chmod 600"]),
        "no key": ((cert, cert, ca), ["COLLECTIVES_TLS_CERT", "missing, or is not pem"]),
        "no authority": ((cert, key, str(text)), ["COLLECTIVES_TLS_CA", str(text)]),
        "encrypted": (certificates["encrypted"], ["COLLECTIVES_TLS_CERT", "the key is encrypted"]),
    }


def test_files_that_cannot_be_used(listener, certificates, tmp_path):  # noqa: F811
    """On the very rank that has them, before it speaks to any other."""
    for what, (files, parts) in bad_files(certificates, tmp_path).items():
        (rank,) = finish(Rank(environment(listener, 1, 2, tls=files)))
        assert isinstance(rank.error, ValueError), what
        for part in parts:
            assert part in str(rank.error), what


@pytest.mark.parametrize("given", ["CERT", "KEY", "CA"])
def test_incomplete_variables(given):
    missing = "CA" if given == "CERT" else "CERT"
    with pytest.raises(ValueError, match=f"COLLECTIVES_TLS_{missing} is not set"):
        read_environment(environ={f"COLLECTIVES_TLS_{given}": "x"})
