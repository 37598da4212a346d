from __future__ import annotations

from typing import Any

import pytest

from cerebro.launch.gate import Gate

TOKEN = "s3cret"


def inner(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}".encode()]


class Answer:
    def __init__(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = int(status.split()[0])
        self.headers = dict(headers)
        self.body = body


def ask(path: str = "/", *, query: str = "", method: str = "GET", **headers: str) -> Answer:
    gate = Gate(inner, token=TOKEN, name="x", methods=("GET", "HEAD", "POST"))
    environ = {"HTTP_HOST": "127.0.0.1:8080", "PATH_INFO": path, "QUERY_STRING": query}
    environ |= {"REQUEST_METHOD": method}
    environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
    said: list[Any] = []
    body = b"".join(gate(environ, lambda status, given, *_: said.extend((status, given))))  # type: ignore[arg-type]
    return Answer(said[0], said[1], body)


@pytest.mark.parametrize("kind", ["token", "Bearer", "bearer"])
def test_a_header_with_the_token_opens(kind):
    answer = ask("/page", authorization=f"{kind} {TOKEN}")
    assert (answer.status, answer.body) == (200, b"GET /page")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"query": "token="},
        {"query": "token=wrong"},
        {"query": "token=%ff%fe"},
        {"query": f"token={TOKEN}x"},
        {"query": f"token={TOKEN[:-1]}"},
        {"query": f"token=wrong&token={TOKEN}"},
        {"authorization": "token wrong"},
        {"authorization": f"basic {TOKEN}"},
        {"authorization": TOKEN},
        {"cookie": f"cerebro-x={TOKEN}"},
        {"cookie": "cerebro-x="},
        {"cookie": "\x00;=;,"},
    ],
)
def test_all_else_is_refused(given):
    answer = ask(**given)
    assert answer.status == 403
    assert b"run the cell again" in answer.body
    assert b"cerebro url" in answer.body
    assert "Set-Cookie" not in answer.headers


def test_the_token_in_the_address_becomes_a_cookie_that_does_not_hold_it():
    answer = ask("/a b/ü", query=f"x=1&token={TOKEN}&y=%26")
    assert answer.status == 303
    assert answer.headers["Location"] == "/a%20b/%FC?x=1&y=%26"
    cookie = answer.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert ask(cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "\\\\evil.example"])
def test_no_address_leads_to_another_host(path):
    location = ask(path, query=f"token={TOKEN}").headers["Location"]
    assert location.startswith("/evil.example")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[", "localhost@x"]
)
def test_a_request_that_names_another_host_is_refused(host):
    assert ask(host=host, authorization=f"token {TOKEN}").status == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:9", "[::1]:80"])
def test_the_ends_of_a_tunnel_may_have_any_port(host):
    assert ask(host=host, authorization=f"token {TOKEN}").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_that_change_something_are_refused(method):
    assert ask(method=method, authorization=f"token {TOKEN}").status == 405


def test_a_form_of_another_page_is_refused():
    own = {"authorization": f"token {TOKEN}", "method": "POST"}
    assert ask(**own, origin="http://127.0.0.1:8080").status == 200
    assert ask(**own, origin="http://127.0.0.1:9999").status == 403
    assert ask(**own, origin="null").status == 403


def test_browsers_are_told_not_to_guess_nor_to_tell():
    answer = ask(authorization=f"token {TOKEN}")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
