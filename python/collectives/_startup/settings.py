"""Checks of settings, which come as arguments or as the text of environment variables.

`source` is the name of the setting in errors: ``timeout=`` or ``COLLECTIVES_TIMEOUT``.
"""

from __future__ import annotations

import math
import operator

from .. import _core

_REACH = {name: about["reach"] for name, about in _core.transports().items()}
TRANSPORTS = ("auto", *(name for name, reach in _REACH.items() if reach != "process"), "nccl")
_LONGEST_NAME = 253  # characters, of a host


def integer(value: object, source: str, low: int, high: int) -> int:
    accepted = f"an integer from {low} to {high} is accepted"
    try:
        # operator.index takes NumPy integers too and no floats; a bool is surely a mistake.
        number = int(value, 10) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
        if isinstance(value, bool):
            raise TypeError
    except TypeError:
        raise TypeError(f"{source} is {value!r} of type {type(value).__name__}; {accepted}") from None
    except ValueError:
        raise ValueError(f"{source} is {value!r}; {accepted}") from None
    if not low <= number <= high:
        raise ValueError(f"{source} is {value!r}; {accepted}")
    return number


def flag(value: object, source: str) -> bool:
    """A bool, or the text 0 or 1."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):  # of a variable
        return integer(value, source, 0, 1) == 1
    raise TypeError(f"{source} is {value!r} of type {type(value).__name__}; True or False is accepted")


def replicas(value: object, high: int) -> int:
    if isinstance(value, str):  # integer() accepts the text of variables, but there is none for this
        raise TypeError(f"replicas= is {value!r} of type str; an integer from 1 to {high} is accepted")
    return integer(value, "replicas=", 1, high)


def seconds(value: object, source: str) -> float:
    accepted = "a positive number of seconds is accepted"
    if isinstance(value, bool):
        raise TypeError(f"{source} is {value!r}; {accepted}")
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{source} is {value!r} of type {type(value).__name__}; {accepted}") from None
    except ValueError:
        raise ValueError(f"{source} is {value!r}; {accepted}") from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{source} is {value!r}; {accepted}")
    return seconds


def token(value: object, source: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    # The error does not show the value: it is a secret even when it has the wrong type.
    raise TypeError(f"{source} is of type {type(value).__name__}; a str or bytes is accepted")


def tls(cert: object, key: object, authority: object) -> tuple[str, str, str] | None:
    if cert is None and key is None and authority is None:
        return None
    if cert is None or authority is None:
        missing = "COLLECTIVES_TLS_CERT" if cert is None else "COLLECTIVES_TLS_CA"
        raise ValueError(
            f"{missing} is not set and another COLLECTIVES_TLS_* is; for TLS each rank needs its certificate "
            "(COLLECTIVES_TLS_CERT), its key (COLLECTIVES_TLS_KEY, unless in the same file) and the certificate of the "
            "authority that signed those of all ranks (COLLECTIVES_TLS_CA)"
        )
    return str(cert), str(key or cert), str(authority)


def transport(value: object, source: str) -> str:
    names = ", ".join(TRANSPORTS)
    if value is None:
        return "auto"
    if isinstance(value, str) and _REACH.get(value) == "process":
        raise ValueError(
            f"{source} is {value!r}, which is for threads of one process: call collectives.local_group(n) instead. "
            f"Between processes {names} are accepted"
        )
    if not isinstance(value, str) or value not in TRANSPORTS:
        raise ValueError(f"{source} is {value!r}; accepted are {names}")
    return value


def rules_out_shared_memory(transport: str) -> bool:
    """Whether ranks share no memory even on one host, because a transport between hosts was asked for."""
    return _REACH.get(transport) == "network"


def needs_shared_memory(transport: str) -> bool:
    """Whether all ranks have to share memory."""
    return _REACH.get(transport) == "host"


def address(value: object, source: str) -> tuple[str, int]:
    accepted = "host:port is accepted, for example 10.0.0.1:29400, [fd00::1]:29400 or node1:29400"
    if not isinstance(value, str):
        raise TypeError(f"{source} is {value!r} of type {type(value).__name__}; {accepted}")
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if len(host) > _LONGEST_NAME:
        raise ValueError(f"{source} names a host by {len(host)} characters; at most {_LONGEST_NAME} are accepted")
    if not colon or not host or (":" in host) != bracketed or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{source} is {value!r}; {accepted}")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"{source} is {value!r}, whose port is not from 1 to 65535; {accepted}")
    return host, int(port)
