"""Work done ahead: in order, not too far, and over when nobody wants more."""

from __future__ import annotations

import contextlib
import threading

import pytest

from cerebro.data.ahead import ahead


def test_results_come_in_order_whoever_is_done_first():
    second_done = threading.Event()

    def make(item):
        if item == 0:
            assert second_done.wait(30)
        if item == 1:
            second_done.set()
        return item * 10

    assert list(ahead(make, range(4), threads=2)) == [0, 10, 20, 30]


def test_no_more_is_made_than_may_wait():
    made = []
    results = ahead(made.append, range(100), threads=2)
    with contextlib.closing(results):
        next(results)
    assert len(made) <= 3


def test_an_error_comes_where_its_result_would_have_come():
    def make(item):
        return 1 // item

    results = ahead(make, [1, 0, 1], threads=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
