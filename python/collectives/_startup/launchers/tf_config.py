"""TF_CONFIG, the cluster of TensorFlow: rank and size. Its addresses belong to TensorFlow's servers.

The strategies of `collectives.tensorflow` meet by those; a program that calls `collectives.init` before them needs a
rendezvous of its own. `collectives.tensorflow` checks the variable in full; here a cluster that cannot be read is none.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from . import Job, Launcher


class _TfConfig(Launcher):
    STAGE = 2

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            config = json.loads(variables.get("TF_CONFIG") or "{}")
            chiefs, workers = (len(config["cluster"].get(job) or ()) for job in ("chief", "worker"))
            first = {"chief": 0, "worker": chiefs}.get(config["task"]["type"])
            if first is None or chiefs + workers < 2:  # an evaluator, say, works alone
                return None
            from ..launched import Launched

            why = "the addresses in it are those of TensorFlow's servers"
            rank = first + int(config["task"]["index"])
            return Launched(self.name, rank, chiefs + workers, "TF_CONFIG", "its cluster", why=why)
        return None


LAUNCHER = _TfConfig("a launcher that sets TF_CONFIG", "", "TF_CONFIG")
