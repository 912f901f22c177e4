"""Eager tensors of TensorFlow, which are immutable: a result is a new tensor over the memory that was reduced into."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..adapted import Adapted, Adapter, Array, elsewhere, empty, is_aligned, type_name
from . import Arrays

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_REGISTERED = 2  # dtype.isbuiltin of types that another library has registered with NumPy


def adapter(tf: Any, x: Any) -> Adapter | None:
    """The adapter for objects of the type of ``x``, or None when they are not of TensorFlow."""
    if isinstance(x, tf.Variable):
        return _refuse_variable
    if isinstance(x, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        return _refuse_composite
    if not isinstance(x, tf.Tensor):
        return None
    if not hasattr(type(x), "numpy"):
        return _refuse_symbolic

    def adapt(x: Any, what: str) -> Adapted:
        device = x.device
        if "device:CPU:" not in device:
            raise elsewhere(what, "tf.Tensor", device, "pass a copy (with tf.device('CPU:0'): tf.identity(x))")
        dtype = _numpy_dtype(x, what)
        if dtype.isbuiltin != _REGISTERED:
            array = np.asarray(memoryview(x))
        elif dtype == _BFLOAT16:  # the buffer protocol has no code for it; the bitcast shares the memory
            array = np.asarray(memoryview(tf.bitcast(x, tf.uint16))).view(dtype)
        else:
            array = np.asarray(x.numpy())  # float8: TensorFlow cannot bitcast it, so this is a copy

        def wrap(result: Array) -> Any:
            with tf.device(device):
                if result.dtype.isbuiltin != _REGISTERED:
                    tensor = _over(tf, result)
                elif result.dtype == _BFLOAT16:
                    tensor = tf.bitcast(_over(tf, result.view(np.uint16)), tf.bfloat16)
                else:
                    tensor = tf.convert_to_tensor(result)
                # DLPack puts it on the first CPU device; a logical one has memory of its own.
                return tensor if tensor.device == device else tf.identity(tensor)

        return Adapted(array, False, wrap)

    return adapt


def _over(tf: Any, array: Array) -> Any:
    """A tensor over the memory of ``array``; over a copy when it is not aligned as TensorFlow's kernels expect."""
    if not is_aligned(array):
        aligned = empty(array.shape, array.dtype)
        aligned[...] = array
        array = aligned
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _numpy_dtype(x: Any, what: str) -> np.dtype[Any]:
    """The type of the elements. Raises TypeError for strings, resources and quantised types, which have none."""
    try:
        dtype: np.dtype[Any] = np.dtype(x.dtype.as_numpy_dtype)
    except KeyError:
        dtype = np.dtype(object)
    if dtype.hasobject or dtype.fields is not None:
        raise TypeError(f"{what} is a tf.Tensor of dtype {x.dtype.name}, which cannot take part in a collective")
    return dtype


def _refuse_variable(x: Any, what: str) -> Adapted:
    raise TypeError(
        f"{what} is a {type_name(x)}, whose value a collective does not replace; pass variable.value() and assign the "
        "result: variable.assign(...)"
    )


def _refuse_composite(x: Any, what: str) -> Adapted:
    raise TypeError(f"{what} is a {type_name(x)}; pass its dense tensors as a list")


def _refuse_symbolic(x: Any, what: str) -> Adapted:
    raise TypeError(
        f"{what} is a {type_name(x)}, which has no value yet; call collectives outside of tf.function, on eager tensors"
    )


class _TensorFlow(Arrays):
    def adapter(self, module: Any, x: Any) -> Adapter | None:
        return adapter(module, x)


ARRAYS = _TensorFlow()
