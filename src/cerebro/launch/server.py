"""A small web server on the loopback interface, one thread a request."""

from __future__ import annotations

import socketserver
import sys
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

REQUEST_TIMEOUT_S = 60.0


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Only what failed, and never the query: it may hold a token."""

    def log_error(self, format: str, *args: Any) -> None:
        path = getattr(self, "path", "-").partition("?")[0]
        sys.stderr.write(f"{self.log_date_time_string()} cannot answer {path!r}\n")


class LoopbackServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves a WSGI application on 127.0.0.1; an `OSError` where the port is taken."""

    daemon_threads = True

    def __init__(self, app: WSGIApplication, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        # Without looking up a name for the address, which may take long and is not used.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]
