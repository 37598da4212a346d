from __future__ import annotations

import json
import os
import socket
import threading
import urllib.error
import urllib.request
from http.client import HTTPConnection

import pytest

from cerebro.launch.gate import Gate
from cerebro.launch.reports import report_app
from cerebro.launch.server import LoopbackServer

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, things that are none, and secrets near by."""
    root = tmp_path_factory.mktemp("workspace")
    (root / "secret.html").write_text("secret")
    (root / "other").mkdir()
    (root / "other" / "report.html").write_text("secret")
    runs = root / "runs"
    run = runs / "digits"
    (run / "trials" / "t0003").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"spec": {"metric": "val_loss"}}))
    (run / "lock").write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
    (run / "report.html").write_text("<p>the report</p>")
    (run / "leaderboard.csv").write_text("rank,trial,val_loss\n1,t0003,0.25\n")
    (run / "trials" / "t0003" / "progress.csv").write_text("epoch\n0\n")
    (run / "journal.jsonl").write_text("secret")
    (run / "summary.json").symlink_to("../../secret.html")
    os.mkfifo(run / "trace.json")
    (runs / "begun").mkdir()
    (runs / "begun" / "run.json").write_text("{}")
    (runs / "no-run").mkdir()
    (runs / "linked").symlink_to("../other")
    (runs / "<b>").mkdir()
    (runs / "<b>" / "run.json").write_text("{}")
    return runs


@pytest.fixture(scope="module")
def server(runs):
    gate = Gate(report_app(runs), token=TOKEN, name="reports", methods=("GET", "HEAD"))
    with LoopbackServer(gate, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path: str, method: str = "GET", token: str = TOKEN) -> tuple[int, str, dict]:
    """As written: no client tidies the path up."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    try:
        connection.request(method, path, headers={"Authorization": f"token {token}"})
        response = connection.getresponse()
        return response.status, response.read().decode(), dict(response.headers)
    finally:
        connection.close()


def test_the_report_of_a_run_is_shown_and_may_load_nothing(server):
    status, body, headers = ask(server, "/digits/report.html")
    assert (status, body) == (200, "<p>the report</p>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("path", ["/digits/leaderboard.csv", "/digits/trials/t0003/progress.csv"])
def test_tables_are_shown(server, path):
    status, _, headers = ask(server, path)
    assert (status, headers["Content-Type"]) == (200, "text/csv; charset=utf-8")


def test_the_first_page_lists_the_runs(server):
    status, body, _ = ask(server, "/")
    assert status == 200
    assert 'href="/digits/report.html"' in body
    assert "<td>begun</td><td>not finished</td><td></td><td></td><td></td>" in body
    assert "<td>digits</td><td>running</td><td>t0003  val_loss 0.25</td><td>20" in body
    assert "no-run" not in body
    assert "<b>" not in body


HOSTILE = [
    {},
    {"run.json": "[]", "leaderboard.csv": "rank,trial,val_loss\n1,t0003,0.25\n"},
    {"run.json": '{"spec": {"metric": "val_loss"}}', "leaderboard.csv": "rank,val_loss\n1,<b>\n"},
    {"run.json": '{"spec": []}', "leaderboard.csv": "\x00\n"},
    {"run.json": "[" * 100_000, "lock": '{"host": 1, "pid": "many"}'},
    {"run.json": "{}", "lock": '{"host": "here", "pid": -1}'},
]


@pytest.mark.parametrize("files", HOSTILE)
def test_damaged_files_are_as_if_they_were_not_there(tmp_path, files):
    run = tmp_path / "run"
    run.mkdir()
    for name, text in {"run.json": "{}", **files}.items():
        (run / name).write_text(text)
    assert "<td>run</td><td>not finished</td><td></td>" in first_page(tmp_path)


def test_a_finished_run_is_told(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "summary.json", "journal.jsonl"):
        (run / name).write_text("{}")
    (run / "lock").write_text("")
    assert "<td>run</td><td>finished</td><td></td><td>20" in first_page(tmp_path)


def first_page(runs) -> str:
    environ = {"PATH_INFO": "/", "REQUEST_METHOD": "GET"}
    return b"".join(report_app(runs)(environ, lambda status, headers: None)).decode()  # type: ignore[arg-type]


def test_a_head_request_gets_no_body(server):
    status, body, headers = ask(server, "/digits/report.html", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, "", "17")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.html",
        "/digits/../../secret.html",
        "/digits/../../other/report.html",
        "/%2e%2e/secret.html",
        "/digits/..%2f..%2fsecret.html",
        "//secret.html",
        "/../other/report.html",
        "/linked/report.html",
        "/digits/summary.json",
        "/digits/trace.json",
        "/digits/journal.jsonl",
        "/digits/run.json",
        "/digits/trials/../../../secret.html",
        "/digits/trials/t0003/../../report.html",
        "/digits/report.html/",
        "/digits/report.html%00",
        "/digits/report.html%0a",
        "/digits",
        "/no-run/report.html",
        "/-/report.html",
        "/" + "a" * 5000 + "/report.html",
        "http://127.0.0.1/etc/passwd",
    ],
)
def test_nothing_else_is_shown(server, path):
    status, body, _ = ask(server, path)
    assert status == 404
    assert "secret" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(server, method):
    assert ask(server, "/digits/report.html", method)[0] == 405


def test_a_wrong_token_is_refused(server):
    assert ask(server, "/digits/report.html", token="wrong")[0] == 403


def test_a_browser_comes_in_with_the_token_once(server):
    jar = urllib.request.HTTPCookieProcessor()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar)
    address = f"http://127.0.0.1:{server.server_port}/digits/report.html"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        opener.open(address, timeout=60)
    with opener.open(f"{address}?token={TOKEN}", timeout=60) as page:
        assert page.url == address
    with opener.open(address, timeout=60) as page:
        assert page.read() == b"<p>the report</p>"


def test_requests_leave_no_token_in_the_log(server, capfd):
    ask(server, f"/nothing?token={TOKEN}", token="wrong")
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(f"BREW{'x' * 10}", f"/?token={TOKEN}")
    connection.endheaders()
    connection.getresponse().read()
    connection.close()
    assert TOKEN not in "".join(capfd.readouterr())


def test_runs_that_are_not_there_yet_are_none(tmp_path):
    said = []
    page = report_app(tmp_path / "runs")(
        {"PATH_INFO": "/", "REQUEST_METHOD": "GET"}, lambda status, headers: said.append(status)
    )
    assert said == ["200 OK"]
    assert b"No run is there yet" in b"".join(page)
