"""The progress of bulk work, on a terminal and in a pipe."""

from __future__ import annotations

import io

from cerebro.track.bar import Bar


def test_a_pipe_gets_a_first_and_a_last_line():
    out = io.StringIO()
    with Bar(300, lambda: 7, file=out):
        pass
    first, last = out.getvalue().splitlines()
    assert first == "0 of 300 rows"
    assert last.startswith("300 of 300 rows")


def test_on_a_terminal_one_line_changes():
    out = io.StringIO()
    with Bar(300, lambda: 0, file=out, is_live=True, unit="images"):
        pass
    lines = out.getvalue().split("\r")
    assert "[------------------------] 0 of 300 images" in lines[1]
    # In the end it is gone.
    assert lines[-2].strip() == lines[-1] == ""


def test_work_that_fails_does_not_look_done():
    out = io.StringIO()
    try:
        with Bar(300, lambda: 0, file=out, is_live=True):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert "300 of 300" not in out.getvalue()


def test_counts_are_from_where_they_began_and_no_more_than_all():
    counts = iter([100, 100, 130, 1000])
    out = io.StringIO()
    bar = Bar(50, lambda: next(counts), file=out)
    with bar:
        bar._look()
        bar._look()
    assert [line.split(" of ")[0] for line in out.getvalue().splitlines()] == [
        "0",
        "30",
        "50",
        "50",
    ]


def test_speed_is_that_of_late():
    now = iter([0.0, 10.0, 20.0])
    bar = Bar(1000, lambda: 0, clock=lambda: next(now))
    bar.line(0)
    bar.line(100)
    assert "10 rows/s" in bar.line(200)
