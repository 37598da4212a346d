"""Archives made by hand for tests."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

Files = Iterable[tuple[str, bytes]]

PAIRS = [("a.cls", b"0"), ("a.txt", b"first"), ("b.cls", b"1"), ("b.txt", b"second")]


def tar_bytes(files: Files, *, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tar_format) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


def tar_of(path: Path, files: Files = PAIRS, *, tar_format: int = tarfile.PAX_FORMAT) -> str:
    path.write_bytes(tar_bytes(files, tar_format=tar_format))
    return str(path)


def zip_bytes(files: Files) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return target.getvalue()


def zip_of(path: Path, files: Files = PAIRS) -> str:
    path.write_bytes(zip_bytes(files))
    return str(path)


def plain(samples: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """Samples without the place they come from."""
    return [{k: v for k, v in sample.items() if k != "__source__"} for sample in samples]
