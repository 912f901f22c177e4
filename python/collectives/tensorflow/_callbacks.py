"""What Keras writes on several workers that were all given the same path.

Keras 3 writes on every worker: `model.save`, `ModelCheckpoint` and `BackupAndRestore` then fight over one file. Here
the chief writes, and every other worker does the same into a folder of its own, which is removed: as TensorFlow's
`distributed_file_utils` had it, so that all workers still take part in what saving reads. The state that
`BackupAndRestore` goes on from is that of the chief on all workers, also where they share no file system: workers that
begin at different epochs would reduce what does not belong together.

A path in a folder `workertemp_*`, as TensorFlow's guides make one for each worker, is left as it is.

Only documented names of Keras are used, and replaced: there is no other place where a strategy hears of its models.
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

__all__ = ["Writer", "watch"]

_OWN = "workertemp_"  # folders that a program has made for one worker, by the convention of TensorFlow's guides
_METHODS = ("save", "save_weights", "export")
_FUNCTIONS = (("saving", "save_model"), ("models", "save_model"), ("saving", "save_weights"))

_lock = threading.Lock()
_watched: list[Any] = []  # the module of Keras
# By callback, the folder that it writes to, and its attributes as they were.
_moved: weakref.WeakKeyDictionary[Any, tuple[str, dict[str, str]]] = weakref.WeakKeyDictionary()


class Writer:
    """A worker as one that writes files.

    Attributes:
        name: of this worker, for its folders.
        chief: whether it writes what is to stay.
    """

    def __init__(self, name: str, chief: bool, share: Callable[[Any], Any]) -> None:
        """`share(value)` gives all workers the value of the chief; raises an ``OpError`` as collectives do."""
        self.name = name
        self.chief = chief
        self.share = share

    def make_folder(self) -> str:
        """A folder of this worker, which the caller removes."""
        return tempfile.mkdtemp(prefix=f"collectives-{self.name}-")


def watch() -> None:
    """Has Keras ask here before it writes, once it is imported. Whoever makes variables of a strategy calls this."""
    keras = sys.modules.get("keras")
    if _watched or keras is None or not all(hasattr(keras, name) for name in ("Model", "callbacks", "saving")):
        return
    with _lock:
        if _watched:
            return
        _watched.append(keras)
        for name in _METHODS:
            setattr(keras.Model, name, _elsewhere(getattr(keras.Model, name)))
        for module, name in _FUNCTIONS:
            home = getattr(keras, module)
            if function := getattr(home, name, None):
                setattr(home, name, _elsewhere(function))
        _wrap_training(keras)


def _writer_of(model: Any) -> Writer | None:
    """How this worker writes what belongs to a model; ``None``: as Keras does."""
    strategy = getattr(model, "distribute_strategy", None)
    return getattr(getattr(strategy, "extended", None), "collectives_writer", None)


def _elsewhere(write: Callable[..., Any]) -> Callable[..., Any]:
    """`write(model, filepath, ...)`, which on all workers but the chief leaves nothing behind."""

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
    """The callbacks of a training learn their paths before it begins, and have the old ones again when it has ended."""
    listed = keras.callbacks.CallbackList
    begin, end = listed.on_train_begin, listed.on_train_end

    @functools.wraps(begin)
    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        for callback in self.callbacks:
            _move(keras, callback)
        return begin(self, *args, **kwargs)

    @functools.wraps(end)
    def on_train_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            for callback in self.callbacks:
                _move_back(callback)

    listed.on_train_begin, listed.on_train_end = on_train_begin, on_train_end


def _move(keras: Any, callback: Any) -> None:
    """Gives a callback that writes a folder of this worker."""
    writer = _writer_of(getattr(callback, "model", None))
    if writer is None:
        return
    _move_back(callback)  # where an error has ended the training before
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        files = _files_of(callback, callback.backup_dir)
        contents = _share_files(writer, files)
        if not writer.chief:
            folder = _give_folder(writer, callback, ["backup_dir", *files])
            callback.backup_dir = folder
            for name, path in files.items():
                setattr(callback, name, os.path.join(folder, PurePath(path).name))
            for name, content in contents.items():
                with open(getattr(callback, name), "wb") as file:
                    file.write(content)
        return
    for kind, attribute in ((keras.callbacks.ModelCheckpoint, "filepath"), (keras.callbacks.CSVLogger, "filename")):
        if isinstance(callback, kind) and not writer.chief and not _is_own(getattr(callback, attribute)):
            folder = _give_folder(writer, callback, [attribute])
            setattr(callback, attribute, os.path.join(folder, PurePath(getattr(callback, attribute)).name))


def _give_folder(writer: Writer, callback: Any, attributes: Sequence[str]) -> str:
    """A folder for a callback, whose attributes are about to change."""
    folder = writer.make_folder()
    weakref.finalize(callback, shutil.rmtree, folder, ignore_errors=True)  # at the latest when the process ends
    _moved[callback] = folder, {name: getattr(callback, name) for name in attributes}
    return folder


def _move_back(callback: Any) -> None:
    folder, attributes = _moved.pop(callback, (None, {}))
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, old in attributes.items():
            setattr(callback, name, old)


def _files_of(callback: Any, folder: str) -> dict[str, str]:
    """The paths that a callback has made of its folder, by the names of its attributes."""
    start = os.path.join(folder, "")
    return {
        name: value
        for name, value in vars(callback).items()
        if isinstance(value, str) and value.startswith(start) and value != folder
    }


def _share_files(writer: Writer, files: dict[str, str]) -> dict[str, Any]:
    """What the chief's files contain, on all workers; those that are not there are left out."""
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
        text = f"{error.message}. Give BackupAndRestore to all workers: they go on from the state of the chief"
        raise type(error)(None, None, text) from error
    if problem:
        raise OSError(problem)
    return dict(shared)
