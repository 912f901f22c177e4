"""What the ranks of test_horovod_keras.py run of models in files, of values, and of names."""

from __future__ import annotations

import contextlib
import os
import zipfile

import collectives.tensorflow as hvd
import numpy as np
from horovod_keras_checks import BATCH, data, dense, mine, number, same, same_on_all, trained
from horovod_ranks import said


def saves_and_loads(folder: str) -> None:
    """Rank 0 saves; plain Keras loads it, with a file that names nothing of ours; and `load_model` goes on."""
    import keras
    from collectives.tensorflow import keras as hvd_keras

    model = dense()
    x, y = data()
    x, y = mine(x), mine(y)
    trained(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), x[:32], y[:32], BATCH)
    path = os.path.join(folder, "model.keras")
    if hvd.rank() == 0:
        model.save(path)
    hvd.barrier()
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if b"collectives" in archive.read(name)]
    loaded = hvd_keras.load_model(path)
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert isinstance(loaded.optimizer, keras.optimizers.Adam) and type(loaded.optimizer) is not keras.optimizers.Adam
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for other in (loaded, plain):
        same([np.array(v) for v in other.optimizer.variables], [np.array(v) for v in model.optimizer.variables])
    assert number(loaded.optimizer.iterations) == 8
    for one in (model, loaded):
        one.fit(x[32:], y[32:], batch_size=BATCH, shuffle=False, verbose=0)
    same(loaded.get_weights(), model.get_weights())
    same_on_all(loaded.get_weights())
    again = os.path.join(folder, f"again{hvd.rank()}.keras")
    loaded.save(again)
    assert type(keras.saving.load_model(again).optimizer) is keras.optimizers.Adam


def saves_other_optimizers(folder: str) -> None:
    """One of the program, registered or not, and one with a loss scale; and a model without an optimizer."""
    import keras
    from collectives.tensorflow import keras as hvd_keras

    @keras.saving.register_keras_serializable(package="program")
    class Registered(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
        pass

    class Unknown(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
        pass

    for i, plain in enumerate(
        [
            Registered(0.5),
            Unknown(0.5),
            keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.5)),
            None,
        ]
    ):
        model = dense()
        if plain is not None:
            model.compile(hvd.DistributedOptimizer(plain), "mse")
        path = os.path.join(folder, f"other{i}-{hvd.rank()}.keras")
        model.save(path)
        custom = [Unknown] if isinstance(plain, Unknown) else None
        with contextlib.ExitStack() as stack:
            if custom:
                stack.enter_context(keras.saving.custom_object_scope({"Unknown": Unknown}))
            assert plain is None or type(keras.saving.load_model(path).optimizer) is type(plain)
        loaded = hvd_keras.load_model(path, custom_optimizers=custom)
        if plain is None:
            assert getattr(loaded, "optimizer", None) is None
        else:
            assert isinstance(loaded.optimizer, type(plain))
            assert said(hvd.DistributedOptimizer, loaded.optimizer).startswith("ValueError")


def values() -> None:
    """Functions that return NumPy arrays, and names."""
    from collectives.tensorflow import keras as hvd_keras

    n, r = hvd.size(), hvd.rank()
    for got, expected in (
        (hvd_keras.allreduce(float(r)), np.float32((n - 1) / 2)),
        (hvd_keras.allreduce(np.full(3, r), op=hvd_keras.Sum), np.full(3, n * (n - 1) // 2)),
        (hvd_keras.allreduce([1.0], average=False, prescale_factor=2.0), np.full(1, 2.0 * n, "float32")),
        (hvd_keras.allreduce([3.0], compression=hvd_keras.Compression.fp16), np.full(1, 3.0, "float32")),
        (hvd_keras.allgather(np.full((r + 1, 2), r)), np.repeat(np.arange(n), np.arange(n) + 1)[:, None] + [0, 0]),
        (hvd_keras.broadcast(np.array([r, 7]), 1), np.array([1, 7])),
        (hvd_keras.reducescatter(np.arange(2.0 * n)), np.arange(2.0 * n)[2 * r : 2 * r + 2]),
    ):
        assert isinstance(got, np.ndarray | np.generic) and got.dtype == expected.dtype, got
        np.testing.assert_array_equal(got, expected)
    assert hvd_keras.broadcast_object({"a": r}, 1) == {"a": 1}
    assert (hvd_keras.rank(), hvd_keras.size(), hvd_keras.is_initialized()) == (r, n, True)
    assert said(hvd_keras.broadcast_global_variables, 0).startswith("RuntimeError")
    assert hvd.keras is hvd_keras
    for name in ("elastic", "join", "ProcessSet", "start_timeline"):
        assert said(getattr, hvd_keras, name).startswith("NotImplementedError")
    assert said(getattr, hvd_keras.callbacks, "CommitStateCallback").startswith("NotImplementedError")
    assert said(getattr, hvd_keras, "nonsense").startswith("AttributeError")
