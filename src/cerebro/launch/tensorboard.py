"""TensorBoard behind the gate: it has no token of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tensorboard.program import TensorBoard

from cerebro.launch.gate import Gate
from cerebro.launch.server import LoopbackServer

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

METHODS = ("GET", "HEAD", "POST")


class _GatedServer(LoopbackServer):
    def get_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


def serve(*, port: int, token: str, runs: Path, workspace: Path) -> None:
    """Serve the metrics of the runs until the process is ended."""

    def make_server(app: WSGIApplication, flags: object) -> _GatedServer:
        return _GatedServer(
            Gate(app, token=token, name=f"tensorboard-{port}", methods=METHODS), port
        )

    board = TensorBoard(server_class=make_server)
    # Its faster reader of files is a process that answers everyone on this machine.
    board.configure(argv=("", "--logdir", str(runs), "--load_fast", "false"))
    board.launch()
    threading.Event().wait()
