"""The gate in front of a web application: only who has the token comes in."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

#: Names under which a browser on this machine, or at the end of a tunnel, knows a service.
HOSTS = ("127.0.0.1", "localhost", "::1")
_HEADERS = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))


class Gate:
    """Lets requests with the token through: in the URL once, then in a cookie; or in a header.

    The token is taken out of the address at once, by a redirect, so that it is in no history and in
    no `Referer`. The cookie holds a digest of it. Requests that name another host, as those of a
    page do that had its name resolved to this machine, are refused.

    >>> def hello(environ, start_response):
    ...     start_response("200 OK", [])
    ...     return [b"hello"]
    >>> gate = Gate(hello, token="t0ken", name="reports", methods=("GET",))
    >>> said = []
    >>> request = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_HOST": "localhost:80"}
    >>> _ = gate(request, lambda status, headers: said.append(status))
    >>> gate({**request, "HTTP_AUTHORIZATION": "token t0ken"}, lambda *answer: None), said
    ([b'hello'], ['403 Forbidden'])
    """

    def __init__(
        self, app: WSGIApplication, *, token: str, name: str, methods: Sequence[str]
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = f"cerebro-{name}"
        self._pass = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest()
        self._methods = methods

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        refusal = self._refusal(environ)
        if refusal is not None:
            return answer(start_response, *refusal)
        given = _query_token(environ)
        if given is not None:
            if not self._is_token(given):
                return answer(start_response, "403 Forbidden", _WRONG)
            return self._welcome(environ, start_response)
        if not self._is_known(environ):
            return answer(start_response, "403 Forbidden", _WRONG)
        return self._app(environ, _guarded(start_response))

    def _refusal(self, environ: WSGIEnvironment) -> tuple[str, str] | None:
        if environ["REQUEST_METHOD"] not in self._methods:
            return "405 Method Not Allowed", "This service is read only."
        if _host(f"//{environ.get('HTTP_HOST', '')}") not in HOSTS:
            return "403 Forbidden", "This service answers to localhost only: use a tunnel."
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            own = urlsplit(origin).netloc == environ["HTTP_HOST"]
            return None if own else ("403 Forbidden", "Requests of other pages are refused.")
        return None

    def _is_known(self, environ: WSGIEnvironment) -> bool:
        kind, _, credentials = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind.lower() in ("token", "bearer"):
            return self._is_token(credentials.strip())
        try:
            cookies = SimpleCookie(environ.get("HTTP_COOKIE", ""))
        except CookieError:
            return False
        cookie = cookies.get(self._cookie)
        return cookie is not None and _is_same(cookie.value.encode(), self._pass.encode())

    def _is_token(self, given: str) -> bool:
        return _is_same(given.encode("utf-8", "replace"), self._token)

    def _welcome(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """To the same page without the token, and with a cookie in its place."""
        rest = [pair for pair in _query(environ) if pair[0] != "token"]
        # One slash at the beginning: two would lead to another host.
        path = "/" + quote(environ.get("PATH_INFO", "/").encode("latin-1").lstrip(b"/\\"))
        place = path + (f"?{urlencode(rest)}" if rest else "")
        cookie = f"{self._cookie}={self._pass}; HttpOnly; SameSite=Lax; Path=/"
        headers = [("Location", place), ("Set-Cookie", cookie)]
        return answer(start_response, "303 See Other", "", headers)


_WRONG = (
    "The token is missing or wrong: every start makes a new one. If a notebook gave you this "
    "address, run the cell again, or `cerebro url`: it prints an address with the token."
)


def answer(
    start_response: StartResponse,
    status: str,
    text: str,
    headers: Iterable[tuple[str, str]] = (),
) -> Iterable[bytes]:
    """A response of plain text."""
    body = text.encode()
    fixed = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
    _guarded(start_response)(status, [*fixed, ("Cache-Control", "no-store"), *headers])
    return [body]


def _guarded(start_response: StartResponse) -> StartResponse:
    def guarded(
        status: str, headers: list[tuple[str, str]], *error: object
    ) -> Callable[[bytes], object]:
        given = {name.lower() for name, _ in headers}
        more = [(name, value) for name, value in _HEADERS if name.lower() not in given]
        return start_response(status, [*headers, *more], *error)  # type: ignore[arg-type]

    return guarded


def _query(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    return parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)


def _query_token(environ: WSGIEnvironment) -> str | None:
    return next((value for name, value in _query(environ) if name == "token"), None)


def _host(netloc: str) -> str | None:
    try:
        return urlsplit(netloc).hostname
    except ValueError:
        return None


def _is_same(one: bytes, other: bytes) -> bool:
    # Takes as long for a near miss as for any other.
    return hmac.compare_digest(one, other)
