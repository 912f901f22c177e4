"""Makes Keras write files on the chief only, when all workers were given the same path.

Keras 3 writes on every worker, so `model.save`, `ModelCheckpoint` and `BackupAndRestore` of all workers write to one
file. Here the chief writes it, and every other worker writes into a temporary folder, as TensorFlow's
`distributed_file_utils` did, because saving may read variables by collectives. All workers restore the chief's state of
`BackupAndRestore`, also where they share no file system: workers that start at different epochs would reduce gradients
of different steps.

A path in a folder `workertemp_*`, which TensorFlow's guides make for each worker, is not changed.

This module patches documented names of Keras only: Keras calls a strategy nowhere when it writes.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import tensorflow as tf

__all__ = ["Writer", "patch_keras"]

_OWN = "workertemp_"  # folders that a program has made for one worker, by the convention of TensorFlow's guides
_METHODS = ("save", "save_weights", "export")
_FUNCTIONS = (("saving", "save_model"), ("models", "save_model"), ("saving", "save_weights"))

_lock = threading.Lock()
_patched: list[Any] = []  # the module of Keras
# For each callback, the folder that it writes to now, and its attributes as they were before.
_redirected: weakref.WeakKeyDictionary[Any, tuple[str, dict[str, str]]] = weakref.WeakKeyDictionary()


class Writer:
    """How a worker writes files.

    Attributes:
        name: of this worker, for its folders.
        chief: whether its files are kept.
    """

    def __init__(self, name: str, chief: bool, share: Callable[[Any], Any]) -> None:
        """`share(value)` gives all workers the value of the chief; raises an ``OpError`` as collectives do."""
        self.name = name
        self.chief = chief
        self.share = share

    def make_folder(self) -> str:
        """A folder of this worker, which the caller removes."""
        return tempfile.mkdtemp(prefix=f"collectives-{self.name}-")


def patch_keras() -> None:
    """Patches Keras, once, if it is imported. To be called when a strategy makes variables."""
    keras = sys.modules.get("keras")
    if _patched or keras is None or not all(hasattr(keras, name) for name in ("Model", "callbacks", "saving")):
        return
    with _lock:
        if _patched:
            return
        _patched.append(keras)
        for name in _METHODS:
            setattr(keras.Model, name, _on_chief_only(getattr(keras.Model, name)))
        for module, name in _FUNCTIONS:
            home = getattr(keras, module)
            if function := getattr(home, name, None):
                setattr(home, name, _on_chief_only(function))
        _wrap_training(keras)


def _writer_of(model: Any) -> Writer | None:
    """How this worker writes files of a model; ``None``: as Keras does."""
    strategy = getattr(model, "distribute_strategy", None)
    return getattr(getattr(strategy, "extended", None), "collectives_writer", None)


def _on_chief_only(write: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `write(model, filepath, ...)` such that workers other than the chief leave no file."""

    @functools.wraps(write)
    def written(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        writer = _writer_of(model)
        if writer is None or writer.chief or not isinstance(filepath, str | os.PathLike) or _is_own(filepath):
            return write(model, filepath, *args, **kwargs)
        folder = writer.make_folder()
        try:
            return write(model, os.path.join(folder, PurePath(filepath).name), *args, **kwargs)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return written


def _is_own(path: Any) -> bool:
    return any(part.startswith(_OWN) for part in PurePath(path).parent.parts)


def _wrap_training(keras: Any) -> None:
    """Redirects the paths of callbacks when a training begins, and restores them when it ends."""
    listed = keras.callbacks.CallbackList
    begin, end = listed.on_train_begin, listed.on_train_end

    @functools.wraps(begin)
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        for callback in self.callbacks:
            _redirect(keras, callback)
        return begin(self, *args, **kwargs)

    @functools.wraps(end)
    def on_train_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            for callback in self.callbacks:
                _restore(callback)

    listed.on_train_begin, listed.on_train_end = on_train_begin, on_train_end


def _redirect(keras: Any, callback: Any) -> None:
    """Redirects a callback that writes files into a folder of this worker."""
    writer = _writer_of(getattr(callback, "model", None))
    if writer is None:
        return
    _restore(callback)  # an earlier training may have ended with an error
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        files = _files_of(callback, callback.backup_dir)
        contents = _read_on_chief(writer, files)
        if not writer.chief:
            folder = _use_own_folder(writer, callback, ["backup_dir", *files])
            callback.backup_dir = folder
            for name, path in files.items():
                setattr(callback, name, os.path.join(folder, PurePath(path).name))
            for name, content in contents.items():
                with open(getattr(callback, name), "wb") as file:
                    file.write(content)
        return
    for kind, attribute in ((keras.callbacks.ModelCheckpoint, "filepath"), (keras.callbacks.CSVLogger, "filename")):
        if isinstance(callback, kind) and not writer.chief and not _is_own(getattr(callback, attribute)):
            folder = _use_own_folder(writer, callback, [attribute])
            setattr(callback, attribute, os.path.join(folder, PurePath(getattr(callback, attribute)).name))


def _use_own_folder(writer: Writer, callback: Any, attributes: Sequence[str]) -> str:
    """A folder for a callback; saves the attributes that the caller will change."""
    folder = writer.make_folder()
    weakref.finalize(callback, shutil.rmtree, folder, ignore_errors=True)  # runs at exit at the latest
    _redirected[callback] = folder, {name: getattr(callback, name) for name in attributes}
    return folder


def _restore(callback: Any) -> None:
    folder, attributes = _redirected.pop(callback, (None, {}))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, old in attributes.items():
            setattr(callback, name, old)


def _files_of(callback: Any, folder: str) -> dict[str, str]:
    """The attributes of a callback that are paths in its folder: name and path."""
    start = os.path.join(folder, "")
    return {
        name: value
        for name, value in vars(callback).items()
        if isinstance(value, str) and value.startswith(start) and value != folder
    }


def _read_on_chief(writer: Writer, files: dict[str, str]) -> dict[str, Any]:
    """The contents of the chief's files, on all workers, without files that do not exist."""
    found: dict[str, Any] = {}
    problem = ""
    if writer.chief:
        try:
            for name, path in files.items():
                if tf.io.gfile.exists(path):
                    with tf.io.gfile.GFile(path, "rb") as file:
                        found[name] = np.frombuffer(file.read(), np.uint8)
        except (OSError, tf.errors.OpError) as error:
            problem = f"the chief cannot read the backup of the training: {error}"
    try:
        shared, problem = writer.share((found, problem))
    except tf.errors.OpError as error:
        text = f"{error.message}. Give BackupAndRestore to all workers: they continue from the state of the chief"
        raise type(error)(None, None, text) from error
    if problem:
        raise OSError(problem)
    return dict(shared)
