"""An Indexed Job of Kubernetes: each pod gets its index, and nobody says how many there are.

So COLLECTIVES_SIZE has to be set, to the `completions` of the job. Where another launcher has started this process in
such a pod, the other one counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import Job, Launcher


class _IndexedJob(Launcher):
    STAGE = 3

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        index, size = variables.get(self.rank_variable, ""), variables.get("COLLECTIVES_SIZE", "")
        if not index.isdigit() or size == "1":
            return None
        if not size.isdigit():
            raise ValueError(
                f"{self.rank_variable} is {index}: this process is in pod {index} of {self.name}, which does not say "
                "how many there are, and each of them would be a world of its own. Set COLLECTIVES_SIZE to the number "
                "of its completions, COLLECTIVES_RENDEZVOUS and COLLECTIVES_TOKEN (docs/running.md), or call "
                "init(size=1) where a world of one is meant"
            )
        if not int(index) < int(size):
            raise ValueError(
                f"{self.rank_variable} is {index}, by {self.name}, and COLLECTIVES_SIZE {size}: set that to the number "
                "of completions of the job"
            )
        from ..launched import Launched

        return Launched(self.name, int(index), int(size), self.rank_variable, "COLLECTIVES_SIZE")


LAUNCHER = _IndexedJob("an Indexed Job of Kubernetes", "", "JOB_COMPLETION_INDEX")
