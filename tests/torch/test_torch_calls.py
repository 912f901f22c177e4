"""Every call of torch.distributed that carries tensors, on two and three ranks."""

import pytest
import torch_call_checks as checks
from torch_ranks import Ranks

pytest.importorskip("torch.distributed")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    made = Ranks(request.param)
    yield made
    assert made.leave() == [0] * request.param


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("name", checks.BOTH)
def test_call(ranks, name, asynchronous):
    ranks.run(checks.run, name, asynchronous)


@pytest.mark.parametrize("name", checks.ONCE)
def test_more(ranks, name):
    ranks.run(checks.run, name)
