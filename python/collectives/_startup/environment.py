"""The launch environment: the only module of the Python layer that reads the ``COLLECTIVES_*`` variables.

The table in csrc/core/environment.h lists them; docs/environment.md is generated from it. Arguments win over
variables; an empty variable counts as not set. Without either the world has one rank, unless another launcher has
started this process with others (_startup/launchers/).
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import _core
from . import network, overrides, profile, settings
from .interfaces import check_pattern
from .launchers import refuse_world_of_one
from .secrets import read_token_file

if TYPE_CHECKING:
    from .published import Lookup
    from .wire import Deadline

PREFIX = "COLLECTIVES_"
VARIABLES = tuple(entry["name"] for entry in _core.environment_variables())
START_TIMEOUT = 300.0  # seconds, when no timeout is given: pods that pull images start minutes apart
LOG_LEVELS = ("error", "warning", "info", "debug")
MAX_SIZE = 1 << 20
MAX_THREADS = 1024
MAX_HEAP = 16 << 40  # a process has address space for a few of these
DEFAULT_HEAP = 64 << 30  # bytes of address space, not of memory


@dataclass(frozen=True)
class Environment:
    """How this process was started.

    Attributes:
        rank: number of this process.
        size: number of processes.
        rendezvous: host and port on which rank 0 listens; ``None`` in a world of one.
        token: secret of the job; never shown by ``repr``.
        transport: one of ``TRANSPORTS``.
        timeout: seconds, or ``None`` when neither the caller nor the environment gave one.
        rendezvous_fd: descriptor of a socket that listens on the rendezvous address, or -1.
        launcher_fd: descriptor of a file that says which ranks have ended (`_startup.ended`), or -1.
        replicas: number of ranks of this process; ``None``: the caller did not say, which is one.
        interfaces: pattern of the interfaces that data may use, ``""`` for all.
        tls: files with the certificate, its key and the authority's certificates, or ``None`` for no TLS.
        deadline: of the start, if the start began before this object was made.
        compare_shapes: whether all_reduce, reduce and broadcast compare the shapes of all ranks, not only the lengths.
        lookup: asks again for rendezvous and token, where these may be those of an earlier start.
        patience: seconds that starting may take, where the environment says so.
        algorithm: which algorithms are to be taken, as text (`_startup.overrides`), ``""`` where nothing is said.
        network: the rate and latency between hosts as text (`_startup.network`), ``""`` where nothing is said.
        profile: what is known of this kind of machine, or why the file with that cannot be used.
    """

    rank: int = 0
    size: int = 1
    rendezvous: tuple[str, int] | None = None
    token: bytes = field(default=b"", repr=False)
    transport: str = "auto"
    timeout: float | None = None
    rendezvous_fd: int = -1
    launcher_fd: int = -1
    replicas: int | None = None
    interfaces: str = ""
    tls: tuple[str, str, str] | None = None
    deadline: Deadline | None = field(default=None, repr=False, compare=False)
    compare_shapes: bool = True
    lookup: Lookup | None = field(default=None, repr=False, compare=False)
    patience: float | None = None
    network: str = ""
    algorithm: str = ""
    profile: profile.Profile = field(default=profile.Profile(), repr=False)

    @property
    def start_timeout(self) -> float:
        """Seconds that starting may take."""
        return next(seconds for seconds in (self.patience, self.timeout, START_TIMEOUT) if seconds is not None)


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def variables_set(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of the table that are set, with their values, except for that of the token.

    Args:
        environ: the variables to read, ``os.environ`` by default.
    """
    variables = os.environ if environ is None else environ
    values = {name: value for name in VARIABLES if (value := _lookup(variables, name)) is not None}
    return {name: "(not shown)" if name == "COLLECTIVES_TOKEN" else value for name, value in values.items()}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables with our prefix that are not in the table, probably typing errors.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Returns:
        by name, the variable of the table that was probably meant; ``""`` where none is similar.
    """
    # Compared without the prefix, which would make all of them similar.
    known = [name.removeprefix(PREFIX) for name in VARIABLES]
    unknown = {}
    for name in sorted(os.environ if environ is None else environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            similar = difflib.get_close_matches(name.removeprefix(PREFIX).upper(), known, n=1)
            unknown[name] = PREFIX + similar[0] if similar else ""
    return unknown


def warn_of_unknown_variables(*, stacklevel: int, environ: Mapping[str, str] | None = None) -> None:
    """One ``RuntimeWarning`` with the names of all unknown variables. It shows no values: one may be a secret.

    Args:
        stacklevel: as in ``warnings.warn``; 2 is the caller of this function.
        environ: the variables to read, ``os.environ`` by default.
    """
    unknown = unknown_variables(environ)
    if not unknown:
        return
    names = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in unknown.items()]
    known = "" if all(unknown.values()) else f". Known are {', '.join(VARIABLES)}"
    warnings.warn(
        f"these environment variables are unknown and have no effect: {', '.join(names)}{known}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def read_environment(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    token: str | bytes | None = None,
    transport: str | None = None,
    timeout: float | None = None,
    replicas: int | None = None,
    compare_shapes: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> Environment:
    """Combines explicit arguments with the environment; arguments win.

    Args:
        rank, size, rendezvous, token, transport, timeout, compare_shapes: as the variables of the same name; ``None``:
            not given.
        replicas: number of ranks of this process. It has no variable, since it decides the type that ``init`` returns.
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: a value is not acceptable; the text names the argument or variable, its value and what is accepted.
        TypeError: an argument has a wrong type.
    """
    variables = os.environ if environ is None else environ

    def choose(name: str, argument: object) -> tuple[object, str]:
        """The value in force (``None`` if there is none) and its name in errors."""
        variable = PREFIX + name.upper()
        if argument is not None:
            return argument, f"{name}="
        return _lookup(variables, variable), variable

    rank_value, rank_source = choose("rank", rank)
    size_value, size_source = choose("size", size)
    address_value, address_source = choose("rendezvous", rendezvous)
    transport_value, transport_source = choose("transport", transport)
    timeout_value, timeout_source = choose("timeout", timeout)
    fd_value, fd_source = choose("rendezvous_fd", None)
    ended_value, ended_source = choose("launcher_fd", None)
    interfaces_value, interfaces_source = choose("socket_ifname", None)
    patience_value, patience_source = choose("start_timeout", None)
    network_value = choose("network", None)[0]
    tls = settings.tls(*(choose(f"tls_{part}", None)[0] for part in ("cert", "key", "ca")))

    if network_value is not None:
        network.parse(str(network_value))
    chosen_transport = settings.transport(transport_value, transport_source)
    chosen_timeout = None if timeout_value is None else settings.seconds(timeout_value, timeout_source)

    if size_value is None:
        for value, source in ((rank_value, rank_source), (address_value, address_source)):
            if value is not None:
                raise ValueError(
                    f"{source} is {value!r} but the number of ranks is not given: set COLLECTIVES_SIZE or pass size= "
                    "(1 for a world of one)"
                )
        refuse_world_of_one(variables)
    chosen_size = 1 if size_value is None else settings.integer(size_value, size_source, 1, MAX_SIZE)
    if chosen_size > 1 and rank_value is None:
        raise ValueError(
            f"{size_source} is {size_value!r} but the rank of this process is not given: set COLLECTIVES_RANK or pass "
            f"rank=, a number from 0 to {chosen_size - 1}"
        )
    chosen_replicas = None if replicas is None else settings.replicas(replicas, MAX_SIZE // chosen_size)
    chosen_rank = 0 if rank_value is None else settings.integer(rank_value, rank_source, 0, chosen_size - 1)
    address = None if address_value is None else settings.address(address_value, address_source)
    if chosen_size > 1 and address is None:
        raise ValueError(
            f"{size_source} is {size_value!r} but no rendezvous is given: set COLLECTIVES_RENDEZVOUS or pass "
            "rendezvous=, the host:port on which rank 0 listens (the same text on every rank)"
        )
    # The descriptor is for rank 0 only; other ranks may have inherited the variable by mistake.
    use_fd = fd_value is not None and chosen_rank == 0 and chosen_size > 1
    return Environment(
        rank=chosen_rank,
        size=chosen_size,
        replicas=chosen_replicas,
        rendezvous=address if chosen_size > 1 else None,
        token=read_token(token, variables) if chosen_size > 1 or token is not None else b"",
        transport=chosen_transport,
        timeout=chosen_timeout,
        rendezvous_fd=settings.integer(fd_value, fd_source, 0, 1 << 30) if use_fd else -1,
        launcher_fd=-1 if ended_value is None else settings.integer(ended_value, ended_source, 0, 1 << 30),
        interfaces="" if interfaces_value is None else check_pattern(str(interfaces_value), interfaces_source),
        tls=tls,
        compare_shapes=read_compare_shapes(compare_shapes, variables),
        patience=None if patience_value is None else settings.seconds(patience_value, patience_source),
        network="" if network_value is None else str(network_value),
        algorithm=_lookup(variables, overrides.VARIABLE) or "",
        profile=read_profile(variables),
    )


def read_place(environ: Mapping[str, str] | None = None) -> dict[str, tuple[int, str]]:
    """Rank and size that the variables give, each with the name of its variable; those that are not set are left out.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: a variable is no such number.
    """
    variables = os.environ if environ is None else environ
    found = {}
    for name, low in (("rank", 0), ("size", 1)):
        variable = PREFIX + name.upper()
        if (text := _lookup(variables, variable)) is not None:
            found[name] = settings.integer(text, variable, low, MAX_SIZE), variable
    return found


def has_rendezvous(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the variable names a rendezvous.

    Args:
        environ: the variables to read, ``os.environ`` by default.
    """
    return _lookup(os.environ if environ is None else environ, "COLLECTIVES_RENDEZVOUS") is not None


def read_log(environ: Mapping[str, str] | None = None) -> str:
    """How much the library says on stderr: one of ``LOG_LEVELS``, or "" where nothing is set.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: the variable is something else.
    """
    text = _lookup(os.environ if environ is None else environ, "COLLECTIVES_LOG") or ""
    if text and text not in LOG_LEVELS:
        raise ValueError(f"COLLECTIVES_LOG is {text!r}; accepted are {', '.join(LOG_LEVELS)}")
    return text


def read_token(token: str | bytes | None = None, environ: Mapping[str, str] | None = None) -> bytes:
    """The secret of the job, ``b""`` when none is given: the argument, the variable, or the contents of the file.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        TypeError: the argument has a wrong type.
        ValueError: the file cannot be read, or others can read it. The text does not contain the secret.
    """
    variables = os.environ if environ is None else environ
    name = "COLLECTIVES_TOKEN"
    value = _lookup(variables, name) if token is None else token
    path = _lookup(variables, f"{name}_FILE")
    if value is None and path is not None:
        return read_token_file(path, f"{name}_FILE")
    return b"" if value is None else settings.token(value, name if token is None else "token=")


def read_symmetric_heap(environ: Mapping[str, str] | None = None) -> int:
    """Bytes of address space that each rank reserves for symmetric memory; the same on every rank.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: the variable is not a number of bytes.
    """
    text = _lookup(os.environ if environ is None else environ, "COLLECTIVES_SYMMETRIC_HEAP")
    if text is None:
        return DEFAULT_HEAP
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    digits, shift = (text[:-1], units[text[-1].upper()]) if text[-1].upper() in units else (text, 0)
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(
            f"COLLECTIVES_SYMMETRIC_HEAP is {text!r}; a number of bytes is accepted, with K, M, G or T behind it if "
            "you like"
        )
    heap = int(digits) << shift
    if heap > MAX_HEAP:
        raise ValueError(f"COLLECTIVES_SYMMETRIC_HEAP is {text!r}; at most {MAX_HEAP >> 40}T are accepted")
    return heap


def read_overrides(environ: Mapping[str, str] | None = None) -> list[overrides.Override]:
    """The algorithms that are to be taken for calls of some sizes; the same on every rank.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: the variable cannot be read, or names what does not exist.
    """
    text = _lookup(os.environ if environ is None else environ, overrides.VARIABLE)
    return [] if text is None else overrides.parse(text)


def read_profile(environ: Mapping[str, str] | None = None) -> profile.Profile:
    """The profile that the variable names, or one with the problem that its file has. Never raises.

    Args:
        environ: the variables to read, ``os.environ`` by default.
    """
    path = _lookup(os.environ if environ is None else environ, profile.VARIABLE)
    return profile.Profile() if path is None else profile.read(path)


def read_num_threads(environ: Mapping[str, str] | None = None) -> int:
    """Threads that a reduction over the replicas of this process may use; 0: as many as it has cores.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: the variable is not a number of threads.
    """
    text = _lookup(os.environ if environ is None else environ, "COLLECTIVES_NUM_THREADS")
    return 0 if text is None else settings.integer(text, "COLLECTIVES_NUM_THREADS", 1, MAX_THREADS)


def read_recorder_dir(environ: Mapping[str, str] | None = None) -> str:
    """The folder for dumps of the recorder, as an absolute path; empty: none.

    Args:
        environ: the variables to read, ``os.environ`` by default.
    """
    text = _lookup(os.environ if environ is None else environ, "COLLECTIVES_RECORDER_DIR")
    return "" if text is None else os.path.abspath(text)


def read_signals(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the library may handle signals.

    Args:
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    text = _lookup(os.environ if environ is None else environ, "COLLECTIVES_SIGNALS")
    return text is None or settings.flag(text, "COLLECTIVES_SIGNALS")


def read_compare_shapes(given: bool | None = None, environ: Mapping[str, str] | None = None) -> bool:
    """Whether all_reduce, reduce and broadcast compare shapes: the argument, else the variable.

    Args:
        given: the argument of the caller, or ``None``.
        environ: the variables to read, ``os.environ`` by default.

    Raises:
        ValueError, TypeError: the variable is neither 0 nor 1, or the argument is no bool.
    """
    name = "COLLECTIVES_COMPARE_SHAPES"
    value = _lookup(os.environ if environ is None else environ, name) if given is None else given
    return value is None or settings.flag(value, name if given is None else "compare_shapes=")


def _lookup(variables: Mapping[str, str], name: str) -> str | None:
    """The value of a variable of the table, ``None`` when it is not set or empty."""
    assert name in VARIABLES, f"{name} is not in the table of csrc/core/environment.h"
    return variables.get(name) or None
