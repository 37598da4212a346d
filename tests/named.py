"""Small files in the formats in which public data sets come, and a server that has them."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import struct
import tarfile
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

from cerebro.data.named.kinds import Form, Found, Loaded, NamedData, Origin, OriginFile, Rows


def bytes_of(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def labels_of(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 10, rows)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(folder: Path, rows: int = 40, ending: str = ".gz") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate({"train": rows, "t10k": rows // 2}.items()):
        write_idx(folder / f"{split}-images-idx3-ubyte{ending}", bytes_of(seed, count, 28, 28))
        write_idx(folder / f"{split}-labels-idx1-ubyte{ending}", labels_of(seed, count))


def cifar_batches(rows: int = 8) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {
        name: (bytes_of(seed, rows, 3, 32, 32), labels_of(seed, rows))
        for seed, name in enumerate(names)
    }


def write_cifar_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in cifar_batches().items():
        records = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_cifar_archive(path: Path, folder: Path) -> None:
    """Of the binary files in a folder, as it is published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
        member = tarfile.TarInfo("cifar-10-batches-bin/readme.html")
        tar.addfile(member, io.BytesIO())


def write_cifar_png(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    batches = cifar_batches()
    for name, (x, _) in batches.items():
        lines = x.transpose(0, 2, 3, 1).reshape(len(x), 1024, 3)
        Image.fromarray(lines).save(folder / f"{name}.png")
    *train, test = (y for _, y in batches.values())
    (folder / "train_lables.json").write_text(json.dumps(np.concatenate(train).tolist()))
    (folder / "test_lables.json").write_text(json.dumps(test.tolist()))


def mat_element(kind: int, data: bytes) -> bytes:
    if len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def mat_array(name: str, array: np.ndarray, *, kind: int, stored: int, packed: bool) -> bytes:
    """An array of class `kind` whose numbers are stored as type `stored`, by columns."""
    body = mat_element(6, struct.pack("<II", kind, 0))
    body += mat_element(5, struct.pack(f"<{array.ndim}i", *array.shape))
    body += mat_element(1, name.encode())
    body += mat_element(stored, array.tobytes(order="F"))
    matrix = struct.pack("<II", 14, len(body)) + body
    if not packed:
        return matrix
    small = zlib.compress(matrix)
    return struct.pack("<II", 15, len(small)) + small


MAT_HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def write_svhn(path: Path, seed: int, rows: int, *, packed: bool = True) -> None:
    """As published: X uint8 (32, 32, 3, rows), y double (rows, 1) kept in bytes, 10 for a zero."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = bytes_of(seed, rows, 3, 32, 32).transpose(2, 3, 1, 0)
    y = labels_of(seed, rows).astype(np.uint8)
    y[y == 0] = 10
    path.write_bytes(
        MAT_HEADER
        + mat_array("X", x, kind=9, stored=2, packed=packed)
        + mat_array("y", y[:, None], kind=6, stored=2, packed=packed)
    )


def write_pictures(folder: Path, classes: tuple[str, ...], count: int) -> None:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for each in range(count):
            picture = Image.new("RGB", (60 + each, 40), (40 * number, 8 * each, 200))
            picture.save(folder / name / f"{each}.JPEG", quality=95)


CONTENT = {"a.bin": b"the first file" * 4000, "b.bin": b"the second" * 3000}


def load_tiny(found: Found, options: object, scratch: object) -> Loaded:
    rows = Rows(bytes_of(0, 32, 1, 4, 4), labels_of(0, 32))
    return Loaded(rows, Rows(rows.x[:8], rows.y[:8]))


def tiny() -> NamedData:
    """A data set of two files with known checksums."""
    files = (OriginFile(n, hashlib.md5(c).hexdigest()) for n, c in CONTENT.items())  # noqa: S324
    return NamedData(
        name="tiny",
        about="for tests",
        rows=(32, 8),
        input_shape=(4, 4, 1),
        n_classes=10,
        load=load_tiny,
        forms=(Form("bin", {name: (name,) for name in CONTENT}),),
        folders=("tiny",),
        origin=Origin("http://127.0.0.1:9/nowhere", tuple(files)),
    )


@dataclass
class FileServer:
    """Files on the loopback, and what has been asked for."""

    url: str = ""
    content: dict[str, bytes] = field(default_factory=lambda: dict(CONTENT))
    #: Answers to a file that break off after so many bytes, one number each.
    breaks: dict[str, list[int]] = field(default_factory=dict)
    #: Answers before the file itself.
    refusals: list[int] = field(default_factory=list)
    has_ranges: bool = True
    asked: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.lstrip("/")
        self.asked[name] += 1
        self.gate.wait(60)
        if self.refusals or name not in self.content:
            request.send_error(self.refusals.pop() if self.refusals else 404)
            return
        data, start = self.content[name], 0
        asked = request.headers.get("Range")
        if asked and self.has_ranges:
            self.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                request.send_error(416)
                return
        request.send_response(206 if asked and self.has_ranges else 200)
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        left = self.breaks.get(name, [])
        request.wfile.write(data[start : start + left.pop(0)] if left else data[start:])


@contextlib.contextmanager
def serving() -> Iterator[FileServer]:
    served = FileServer()
    served.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        served.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
