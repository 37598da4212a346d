"""Which of its backends Keras runs on."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

#: In the order of preference where nobody has chosen.
BACKENDS = ("torch", "tensorflow", "jax")
VARIABLE = "KERAS_BACKEND"


def choose_backend() -> None:
    """Set KERAS_BACKEND, unless somebody has chosen before.

    Who has: the variable itself; a program that has imported Keras; and the configuration of the
    user, `~/.keras/keras.json`, if what it names is installed (Keras writes that file by itself,
    with "tensorflow", wherever it is imported first). Else it is the first of `BACKENDS` that is
    installed, while Keras would take TensorFlow and fail without it.
    """
    if os.environ.get(VARIABLE) or "keras" in sys.modules:
        return
    chosen = _configured()
    if chosen is None or find_spec(chosen) is None:
        chosen = next((name for name in BACKENDS if find_spec(name) is not None), None)
    if chosen is not None:
        os.environ[VARIABLE] = chosen


def _configured() -> str | None:
    """The backend that the user's configuration names, if it is one that can train."""
    home = os.environ.get("KERAS_HOME")
    path = (Path(home) if home else Path.home() / ".keras") / "keras.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    return found if found in BACKENDS else None
