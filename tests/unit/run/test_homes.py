from __future__ import annotations

from cerebro.backend.base import WorkerInfo
from cerebro.run.homes import Homes


def info(worker: int, host: str = "a", device: str = "cpu") -> WorkerInfo:
    return WorkerInfo(worker=worker, pid=1, host=host, device=device, versions={})


def holds(events):
    return {event.worker: set(event.holds) for event in events}


def test_on_one_host_all_workers_of_the_cpu_share_all_shards():
    homes = Homes(shards=4, workers=2)
    assert holds(homes.joined(info(0)) + homes.joined(info(1))) == {0: set(), 1: set()}


def test_on_one_host_each_device_has_a_part_and_those_that_come_later_share_one():
    homes = Homes(shards=4, workers=2)
    found = [event for n in (0, 1, 2) for event in homes.joined(info(n, device="cuda"))]
    assert holds(found) == {0: {0, 2}, 1: {1, 3}, 2: {0, 2}}


def test_each_of_several_hosts_has_a_part_for_all_its_workers():
    homes = Homes(shards=5, workers=2)
    homes.joined(info(0, "a"))
    assert holds(homes.joined(info(1, "b"))) == {0: {0, 2, 4}, 1: {1, 3}}
    assert holds(homes.joined(info(7, "b"))) == {7: {1, 3}}
    assert holds(homes.all()) == {0: {0, 2, 4}, 1: {1, 3}, 7: {1, 3}}


def test_a_worker_that_comes_back_finds_its_host_as_it_was():
    homes = Homes(shards=4, workers=2)
    homes.joined(info(0, "a"))
    homes.joined(info(1, "b"))
    homes.lost(0)
    assert holds(homes.joined(info(0, "a"))) == {0: {0, 2}}


def test_hosts_that_are_gone_make_room_for_the_next():
    homes = Homes(shards=4, workers=2)
    homes.joined(info(0, "a"))
    homes.joined(info(1, "b"))
    homes.lost(0)
    assert holds(homes.joined(info(0, "c"))) == {1: {0, 2}, 0: {1, 3}}
