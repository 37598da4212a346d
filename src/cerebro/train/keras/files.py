"""Keras models as files: weights read into a model that the task builds, and models written."""

from __future__ import annotations

import io
import tempfile
import warnings
import zipfile
from pathlib import Path

from cerebro.errors import CheckpointCorruptError, UsageError
from cerebro.storage.tensors import Layout
from cerebro.train.keras.build import Parts
from cerebro.train.keras.variables import pack, restore, to_arrays, unpack
from cerebro.train.model_file import KERAS, SAFETENSORS, ExportCall

#: Endings of files that are read.
_READABLE = (".safetensors", ".weights.h5", ".keras")
#: In a .keras archive.
_WEIGHTS = "model.weights.h5"


def load_weights(parts: Parts, path: str, content: bytes) -> None:
    """Give a model the weights of a file, and nothing else of it.

    The configuration in a .keras file, which may hold code (a Lambda layer), is not looked at: the
    model is the one that the task builds.
    """
    ending = next((end for end in _READABLE if path.endswith(end)), None)
    if ending is None:
        raise UsageError(
            f"a Keras model is read from {', '.join(_READABLE)} files, but got {path}: save it "
            'with model.save_weights("name.weights.h5"). Other files can run code when they are '
            "read."
        )
    if ending == ".safetensors":
        _load_safetensors(parts, path, content)
        return
    if ending == ".keras":
        content = _weights_of(path, content)
    with tempfile.TemporaryDirectory(prefix="cerebro-") as folder:
        file = Path(folder, _WEIGHTS)
        file.write_bytes(content)
        try:
            with warnings.catch_warnings():
                # Weights that nobody asked for, of an optimizer, are no news.
                warnings.simplefilter("ignore")
                parts.model.load_weights(str(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UsageError(
                f"{path} must hold the weights of the model that build() makes with these params, "
                f"but cannot be read as such: {reason:.200}"
            ) from error


def export_model(call: ExportCall, parts: Parts) -> bytes:
    """The content of the file."""
    if call.to == SAFETENSORS:
        arrays = to_arrays(parts.model_variables)
        about = {"format": "keras", **call.about}
        return bytes(pack(arrays, lambda size: memoryview(bytearray(size)), about))
    if call.to != KERAS:
        raise UsageError(
            f"a Keras model is exported to {SAFETENSORS} or {KERAS}, but got {call.to!r}: load the "
            "trial and use model.export for other formats."
        )
    with tempfile.TemporaryDirectory(prefix="cerebro-") as folder:
        file = Path(folder, "model.keras")
        parts.model.save(file)
        return file.read_bytes()


def _load_safetensors(parts: Parts, path: str, content: bytes) -> None:
    try:
        layout = Layout.parse(content)
    except CheckpointCorruptError as error:
        raise UsageError(f"{path}: {error}") from error
    restore(parts.model_variables, unpack(layout, memoryview(content)), "", path)


def _weights_of(path: str, content: bytes) -> bytes:
    """The weights in an archive that Keras saved."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.read(_WEIGHTS)
    except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
        raise UsageError(
            f"{path} must be an archive of model.save() with {_WEIGHTS} in it, but: {error}."
        ) from error
