"""The MLP of examples/dtensor_mlp.py: its losses through our ops are those of DTensor, step by step."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT

EXAMPLES = ROOT / "examples"
STEPS = 15
TOLERANCE = 1e-4
LIMIT = 120  # seconds

# In a process of its own: DTensor adds a device to TensorFlow that stays.
PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import dtensor_mlp, numpy, tensorflow
from collectives.tensorflow import _ops
replicas = int(sys.argv[1])
cpu = tensorflow.config.list_physical_devices("CPU")[0]
tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * replicas)
data = dtensor_mlp.load({STEPS} * 128)
result = {{}}
values = {{}}
for kind in (dtensor_mlp.Mirrored, dtensor_mlp.DTensor):
    before = _ops.replica_bytes()
    model = kind(replicas, 128)
    steps = enumerate(dtensor_mlp.batches(data, 128, 1), 1)
    result[kind.__name__] = [model.step(images, labels, step) for step, (images, labels) in steps]
    result["bytes of " + kind.__name__] = _ops.replica_bytes() - before
    values[kind.__name__] = model.values()
pairs = zip(values["Mirrored"], values["DTensor"], dtensor_mlp.initial_parameters())
result["apart"] = [float(abs(ours - theirs).max()) for ours, theirs, _ in pairs]
pairs = zip(values["Mirrored"], dtensor_mlp.initial_parameters())
result["moved"] = [float(abs(ours - initial).mean()) for ours, initial in pairs]
print(json.dumps(result))
"""


@pytest.mark.parametrize("replicas", [8])
def test_losses_are_those_of_dtensor(replicas: int) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COLLECTIVES_", "TF_"))}
    environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, "-c", PROGRAM, str(replicas)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = np.array(result["Mirrored"]), np.array(result["DTensor"])
    assert ours.shape == theirs.shape == (STEPS,)
    assert abs(ours - theirs).max() < TOLERANCE, (ours, theirs)
    assert theirs[-1] < theirs[0] / 2
    # All parameters were trained, and alike; Adam's steps are 1e-3 long.
    assert min(result["moved"]) > 1e-4
    assert max(result["apart"]) < 1e-3
    gradients = 4 * (784 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10)
    assert result["bytes of Mirrored"] >= STEPS * replicas * gradients
    assert result["bytes of DTensor"] == 0
