"""gcp-storage-emulator, with what it lacks of the protocol: run with a port and a bucket's name.

It knows no conditions, so of two who create an object both would succeed; it reads the parts of
an upload as those of a mail, so a content that ends in a carriage return would lose it; and an
upload cannot be given up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from http.server import HTTPServer
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_read_data = server._read_data


def read_data(handler: Any, query: Any) -> Any:
    """The body of a request; of one in two parts the bytes of the second as they are."""
    said = Message()
    said["Content-Type"] = handler.headers.get("Content-Type") or ""
    if said.get_content_type() != "multipart/related":
        return _read_data(handler, query)
    mark = b"--" + str(said.get_boundary()).encode()
    raw = server._read_raw_data(handler)
    _, meta, rest = raw.split(mark, 2)
    head, _, content = rest.rpartition(b"\n" + mark + b"--")[0].partition(b"\n\n")
    return {
        "meta": json.loads(meta.partition(b"\n\n")[2]),
        "content": content,
        "content-type": head.partition(b":")[2].strip().decode(),
    }


def insert(request: Any, response: Any, storage: Any) -> None:
    """An upload, refused if it must make an object of a name that there is already."""
    if request.query.get("ifGenerationMatch") == ["0"]:
        name = (request.query.get("name") or [None])[0] or request.data["meta"]["name"]
        if is_there(storage, request.params["bucket_name"], name):
            response.status = HTTPStatus.PRECONDITION_FAILED
            response.json({"error": {"code": 412, "message": "conditionNotMet"}})
            return
    objects.insert(request, response, storage)


def is_there(storage: Any, bucket: str, name: str) -> bool:
    try:
        storage.get_file_obj(bucket, name)
    except NotFound:
        return False
    return True


def give_up(request: Any, response: Any, storage: Any) -> None:
    """The end of an upload that is not finished."""
    storage.delete_resumable_file_obj(request.query["upload_id"][0])
    response.status = HTTPStatus.NO_CONTENT


def main(port: int, bucket: str) -> None:
    server._read_data = read_data
    # One request is answered after the other: others wait here.
    HTTPServer.request_queue_size = 128
    uploads: list[dict[str, Callable[..., None]]] = [
        methods for _, methods in server.HANDLERS if methods.get("POST") is objects.insert
    ]
    for methods in uploads:
        methods.update(POST=insert, DELETE=give_up)
    server.create_server("127.0.0.1", port, in_memory=True, default_bucket=bucket).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
