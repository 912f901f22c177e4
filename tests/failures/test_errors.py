"""The error hierarchy: what is a kind of what, and that errors keep all their facts between processes."""

import pickle

import pytest
from collectives import errors

ATTRIBUTES = {
    "rank": 1,
    "peer": 2,
    "collective": "all_reduce",
    "sequence": 7,
    "name": "weights",
    "age": 0.5,
    "host": "a",
    "pid": 1234,
    "bytes_done": 4096,
}
CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", CLASSES)
def test_pickle_keeps_everything(kind):
    error = pickle.loads(pickle.dumps(kind("what happened", **ATTRIBUTES)))
    assert type(error) is kind
    assert str(error) == "what happened"
    assert {name: getattr(error, name) for name in ATTRIBUTES} == ATTRIBUTES


@pytest.mark.parametrize("kind", CLASSES)
def test_attributes_are_none_when_unknown(kind):
    error = kind("what happened")
    assert {name: getattr(error, name) for name in ATTRIBUTES} == dict.fromkeys(ATTRIBUTES)


@pytest.mark.parametrize("kind", CLASSES)
def test_one_base(kind):
    assert issubclass(kind, errors.CollectivesError)
    assert issubclass(kind, RuntimeError)  # as errors of torch.distributed are, which programs catch
    # Work.wait() raises TimeoutError for something else: the work is still pending then.
    assert not issubclass(kind, (TimeoutError, ValueError, TypeError))
    assert kind.__doc__
