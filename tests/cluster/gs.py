"""A server on this machine that speaks as Google Cloud Storage does."""

from __future__ import annotations

import http.client
import subprocess
import sys
from pathlib import Path

from tests.cluster.downloads import ROOT
from tests.ports import free_port
from tests.processes import wait_for

START_S = 180.0
BUCKET = "cerebro"


class GcsServer:
    """One server with one bucket, kept in its memory.

    Args:
        folder: Where its log goes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What clients are to find: nobody's credentials, and no search for other servers."""
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self._port}",
            "CLOUDSDK_CONFIG": str(self._folder),
            "NO_GCE_CHECK": "true",
            # Else the kind of the bucket is asked for, of a second service, before every request.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def start(self) -> None:
        """Start it; returns once it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.gs_server", str(self._port), BUCKET],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers, f"a server; see {self._folder / 'log'}", START_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it has ended; see {self._folder / 'log'}"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", f"/storage/v1/b/{BUCKET}")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()
