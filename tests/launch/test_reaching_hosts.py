"""How hosts find the addresses of the first one: with strangers that connect and stay."""

import selectors
import socket
import time

from collectives.launch import _reach

LIMIT = 30.0  # seconds


def run(selector, is_over):
    end = time.monotonic() + LIMIT
    while not is_over():
        for key, _ in selector.select(0.1):
            key.data()
        assert time.monotonic() < end


def test_strangers_do_not_keep_a_host_away(monkeypatch):
    """They are dropped, the oldest first, when there are many; what they say is answered, and says nothing."""
    monkeypatch.setattr(_reach, "_MOST_OPEN", 20)
    key = _reach.new_key()
    found = []
    with selectors.DefaultSelector() as selector:
        answering = _reach.Answering(selector, key, "")
        host = next((address, port) for address, port in answering.addresses if ":" not in address)
        strangers = [socket.create_connection(host, LIMIT) for _ in range(50)]
        strangers[-1].sendall(b"too short")
        run(selector, lambda: len(answering._open) == 20)
        probing = _reach.Probing(selector, key, answering.addresses, found.append)
        run(selector, lambda: found)
        assert found[0]["4"] == host[0]
        assert strangers[0].recv(1) == b""  # the oldest
        wrong = _reach.Probing(selector, _reach.new_key(), [host], found.append)  # of another job
        run(selector, lambda: len(found) == 2)
        assert found[1] == {"4": None, "6": None}
        for one in (probing, wrong, answering, *strangers):
            one.close()
