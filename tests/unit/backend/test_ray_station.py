"""What an actor on Ray tells of the process that it looks after; without Ray."""

from __future__ import annotations

from cerebro.backend import LocalBackend
from cerebro.backend.limits import Limits
from cerebro.backend.ray.orders import Ended, Order
from cerebro.backend.ray.station import Station
from cerebro.backend.wire import VisitFailed
from cerebro.testing.backend_session import Session, make_call
from tests.unit.backend.growing import SpoiledTask


def test_an_order_after_the_gpu_of_a_process_has_failed_is_not_to_blame(tmp_path):
    setup = Session(LocalBackend(), tmp_path).setup(SpoiledTask())
    station = Station(3, setup, Limits(), str(tmp_path / "logs"))
    try:
        _, life = station.join()
        failed, _ = station.run(Order(life=life, call=make_call(is_wrong=True)), None)
        assert isinstance(failed.message, VisitFailed)
        answer, _ = station.run(Order(life=life, call=make_call()), None)
        assert isinstance(answer.message, Ended)
        assert answer.message.is_machine
        assert station.watch(life).is_machine
        _, successor = station.join()
        assert successor == life + 1
    finally:
        station.close()
