"""What trains on torch.distributed, on two ranks, compared with one process or with what it must be."""

import pytest
import torch_training_checks as checks
from torch_ranks import Ranks

pytest.importorskip("torch.distributed")


@pytest.fixture(scope="module")
def ranks():
    made = Ranks(2)
    yield made
    assert made.leave() == [0, 0]


@pytest.mark.parametrize("name", checks.CHECKS)
def test_training(ranks, name, tmp_path):
    ranks.run(checks.run, name, str(tmp_path))


def test_an_error_of_a_call_ends_backward():
    """It is raised where DDP waits for its futures, with the reason in its text."""
    ranks = Ranks(2)
    ranks.run(checks.run, "backward_without_a_peer", "")
    assert ranks.leave() == [0, 0]


def test_debug_detail():
    ranks = Ranks(2, variables={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    ranks.run(checks.run, "detail", "")
    assert ranks.leave() == [0, 0]
