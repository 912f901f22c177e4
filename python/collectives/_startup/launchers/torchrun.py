"""torchrun: the rank of a process that it started, and the rendezvous by its store.

torchrun gives each process its rank and runs a key-value store (a ``TCPStore`` of torch) that lives as long as the job.
Any process that can reach the port of that store can read it; docs/running.md has the consequences. Others set RANK and
WORLD_SIZE as well, without a store of torchrun's (master.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...errors import DeadlineError
from ..by_store import Meeting, patience
from ..environment import MAX_SIZE, Environment, read_environment, read_token
from ..wire import Deadline
from . import INSTEAD, Launcher


@dataclass(frozen=True)
class Job:
    """The variables of torchrun: rank and size, host and port of the store, name of the job, number of its agents."""

    RANK_VARIABLE: ClassVar[str] = "RANK"
    SIZE_VARIABLE: ClassVar[str] = "WORLD_SIZE"

    rank: int
    size: int
    host: str
    port: int
    name: str
    agents: int = 0

    @property
    def found(self) -> str:
        """What was found, as a sentence without its full stop."""
        return f"torchrun has started this process as rank {self.rank} of {self.size} (RANK, WORLD_SIZE)"

    @property
    def place(self) -> str:
        """Where the ranks meet."""
        return f"torchrun's store at {self.host}:{self.port}"

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected.

        Args:
            token, timeout, arguments: as for `read_environment`.

        Raises:
            CollectivesError: the connection to the store broke.
            DeadlineError: the store does not answer, or rank 0 writes nothing there.
            ValueError: an argument or variable is not acceptable, torch is missing, or rank 0 cannot listen.
        """
        deadline = Deadline(read_environment(rank=0, size=1, timeout=timeout).start_timeout)
        own = read_token(token)
        store, is_lost = self._connect(deadline)
        meeting = Meeting(
            self.rank,
            self.size,
            self.host,
            self.port,
            key=f"collectives/{self.name}",
            place=self.place,
            caller="collectives.init()",
            is_lost=is_lost,
        )
        with meeting.meet(store, deadline, own, timeout, arguments) as environment:
            yield environment

    def _connect(self, deadline: Deadline) -> tuple[Any, Callable[[RuntimeError], bool]]:
        """A client of the store, and what tells its errors apart."""
        try:
            from ...torch import _store  # imports torch, which most programs do not need

            return _store.connect(self.host, self.port, patience(deadline)), _store.is_lost
        except ImportError as error:
            raise ValueError(
                f"torchrun started this process as rank {self.rank} of {self.size}, but its store cannot be used, "
                f"since torch cannot be imported here ({error}). {INSTEAD}"
            ) from None
        except RuntimeError as error:  # a torch.distributed.DistError
            raise DeadlineError(
                f"rank {self.rank} did not reach torchrun's store at {self.host}:{self.port} within "
                f"{deadline.seconds:g} s",
                rank=self.rank,
            ) from error


class _Torchrun(Launcher):
    STAGE = 0  # mpirun or srun may have started its agents

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        """The torchrun job that this process is in; None where torchrun did not start it, or it alone.

        Raises:
            ValueError: torchrun started this process with others but gave them no common store; or its variables are
                not numbers.
        """
        if "TORCHELASTIC_RUN_ID" not in variables:
            return None
        try:
            rank, size, port = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
            host = variables["MASTER_ADDR"]
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"torchrun started this process (TORCHELASTIC_RUN_ID is set) but RANK, WORLD_SIZE, MASTER_ADDR and "
                f"MASTER_PORT are not as it sets them ({type(error).__name__}: {error}). {INSTEAD}"
            ) from None
        if size == 1:
            return None
        if not 0 <= rank < size <= MAX_SIZE:
            raise ValueError(f"torchrun's variables are RANK {rank} and WORLD_SIZE {size}, which cannot be. {INSTEAD}")
        if variables.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise ValueError(
                f"torchrun started this process as rank {rank} of {size}, but without a store that it shares with the "
                "others (TORCHELASTIC_USE_AGENT_STORE is not True): update torch, and unset "
                f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE. {INSTEAD}"
            )
        agents = variables.get("GROUP_WORLD_SIZE", "")
        return Job(rank, size, host, port, variables["TORCHELASTIC_RUN_ID"], int(agents) if agents.isdigit() else 0)


LAUNCHER = _Torchrun("torchrun", "")  # its variables are those of others, too
