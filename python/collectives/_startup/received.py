"""Whether what other ranks have sent has the fields and types that are used: they may be of another version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TEXTS = (  # of an introduction
    *("hostname", "machine", "stack", "transport", "name", "network", "algorithm"),
    *("profile", "profile_digest", "profile_problem"),
)


def is_list_of(value: Any, accepted: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and all(map(accepted, value))


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def are_texts(_: int, value: Any) -> bool:
    return is_list_of(value, lambda text: isinstance(text, str))


def is_info(_: int, value: Any) -> bool:
    """Whether a description of a process has the fields and types that are used here; others are only printed."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in _TEXTS)
        and isinstance(value.get("compare_shapes"), bool)
        and all(is_number(value.get(key)) for key in ("pid", "port_speed", "algorithms"))
        and (value.get("address_space", "") is None or is_number(value.get("address_space")))
        and is_list_of(value.get("cores"), is_number)
        and (value.get("replicas", 0) is None or (is_number(value.get("replicas")) and value["replicas"] > 0))
    )


def is_view(process: int, value: Any) -> bool:
    def is_lower(number: Any) -> bool:
        return is_number(number) and 0 <= number < process

    def is_reason(pair: Any) -> bool:
        return isinstance(pair, (list, tuple)) and len(pair) == 2 and is_lower(pair[0])

    return (
        isinstance(value, dict)
        and is_list_of(value.get("mapped"), is_lower)
        and is_list_of(value.get("reasons"), is_reason)
    )


def are_addresses(value: Any, replicas: int) -> bool:
    """Whether `value` has a list of (host, port) for each replica."""

    def is_address(pair: Any) -> bool:
        return isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) and is_number(pair[1])

    return is_list_of(value, lambda offered: is_list_of(offered, is_address)) and len(value) == replicas
