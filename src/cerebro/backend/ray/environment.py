"""What nodes need to run the driver's code, as Ray's runtime environment says it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cerebro.backend.ray.parcel import own_package, pack_modules, program_folders
from cerebro.errors import UsageError

#: Ray lets one of them say which packages there are.
_INSTALLERS = ("pip", "uv", "conda")
#: With these nothing else travels: an image has it all.
_IMAGES = ("image_uri", "container")


@contextlib.contextmanager
def travelling(
    given: Mapping[str, Any] | None, requirements: str | None
) -> Iterator[dict[str, Any]]:
    """How Ray sets up processes on other machines, and what it sends there for that.

    Args:
        given: What the user has said.
        requirements: A file of packages to install.
    """
    found = with_packages(given, requirements)
    if any(name in found for name in _IMAGES):
        yield found
        return
    # The user's come first: a Cerebro among them is the one that counts.
    found["py_modules"] = [*_modules(found), str(own_package())]
    if "working_dir" in found:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="cerebro-parcel-") as folder:
        pack_modules(Path(folder), program_folders())
        yield found | {"working_dir": folder}


def with_packages(given: Mapping[str, Any] | None, requirements: str | None) -> dict[str, Any]:
    """What the user has said, and the packages of a file besides.

    >>> with_packages({"env_vars": {"A": "1"}}, "requirements.txt")
    {'env_vars': {'A': '1'}, 'pip': 'requirements.txt'}
    """
    found = dict(given or {})
    if requirements is None:
        return found
    for name in ("conda", *_IMAGES):
        if name in found:
            raise UsageError(
                f"packages must be named in one place, but got requirements={requirements!r} and "
                f"a runtime_env with {name!r}, which Ray does not combine. Name them all there, "
                "and leave requirements out."
            )
    installer = next((name for name in _INSTALLERS if name in found), "pip")
    if installer not in found:
        return found | {installer: requirements}
    own, said = _lines(requirements), found[installer]
    if isinstance(said, str):
        return found | {installer: [*own, *_lines(said)]}
    if isinstance(said, Mapping):
        return found | {installer: {**said, "packages": [*own, *said.get("packages", ())]}}
    if isinstance(said, list):
        return found | {installer: [*own, *said]}
    raise UsageError(
        f"runtime_env[{installer!r}] must be a file, a list of packages or a dict with "
        f"'packages', but got {said!r:.200}."
    )


def _modules(environment: Mapping[str, Any]) -> list[Any]:
    found = environment.get("py_modules", [])
    if not isinstance(found, list):
        raise UsageError(
            "runtime_env['py_modules'] must be a list of folders, files or modules, but got "
            f"{found!r:.200}."
        )
    return found


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="utf-8").strip().splitlines()
    except OSError as error:
        raise UsageError(
            f"a file of packages must be readable, but {file} is not: {error.strerror}."
        ) from error
