"""A real HDFS on this machine: a NameNode and DataNodes, from the jars that PySpark once had."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.sax.saxutils import escape

from tests.cluster.downloads import unpack
from tests.ports import free_port
from tests.processes import wait_for

#: The last release that came with the servers.
PACKAGE, CONSTRAINT = "pyspark==2.4.8", "pypandoc<1.6"
START_S = 240.0
#: What Hadoop 2.7 looks at and Java 17 hides.
OPENED = ("java.lang", "java.util", "java.net", "java.nio", "sun.nio.ch")
_SERVER = "org.apache.hadoop.hdfs.server"


class HdfsCluster:
    """A NameNode and some DataNodes on the loopback interface.

    Args:
        folder: Where they keep everything.
        datanodes: How many; every block is on two of them, where there are two.
    """

    def __init__(self, folder: Path, datanodes: int = 2) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"hdfs://127.0.0.1:{self._port}"
        self._namenode: subprocess.Popen[bytes] | None = None
        self.datanodes: list[subprocess.Popen[bytes] | None] = [None] * datanodes
        self._http = free_port()
        for part in ("hdfs", "datanode", "static"):
            page = folder / "www" / "webapps" / part / "WEB-INF"
            page.mkdir(parents=True)
            (page / "web.xml").write_text("<web-app/>")

    def start(self) -> None:
        """Start all of them; returns once blocks can be written."""
        conf = self._configure("namenode")
        subprocess.run(
            self._command(conf, "namenode.NameNode", "-format", "-force", "-nonInteractive"),
            check=True,
            capture_output=True,
            timeout=START_S,
        )
        self._namenode = self._spawn("namenode", "namenode.NameNode", conf)
        for number in range(len(self.datanodes)):
            self.start_datanode(number)
        wait_for(self._is_ready, f"HDFS; see the logs in {self._folder}", START_S)

    def start_datanode(self, number: int) -> None:
        """Start a DataNode, perhaps again."""
        name = f"datanode{number}"
        conf = self._configure(name)
        self.datanodes[number] = self._spawn(name, "datanode.DataNode", conf)

    def kill_datanode(self, number: int) -> None:
        """SIGKILL a DataNode."""
        node = self.datanodes[number]
        if node is not None:
            node.kill()
            node.wait()
            self.datanodes[number] = None

    def stop(self) -> None:
        for number in range(len(self.datanodes)):
            self.kill_datanode(number)
        if self._namenode is not None:
            self._namenode.kill()
            self._namenode.wait()

    def _is_ready(self) -> bool:
        import hdfs_native

        assert self._namenode is not None
        assert self._namenode.poll() is None, f"the NameNode has ended; see {self._folder}"
        log = (self._folder / "namenode.log").read_text(errors="replace")
        if log.count("registerDatanode: from") < len(self.datanodes):
            return False
        try:
            client = hdfs_native.Client(self.url)
            options = hdfs_native.WriteOptions(overwrite=True, replication=len(self.datanodes))
            with client.create("/ready", options) as file:
                file.write(b"ready")
        except Exception:
            return False
        return True

    def _configure(self, name: str) -> Path:
        conf = self._folder / f"{name}.conf"
        conf.mkdir(exist_ok=True)
        local = {key: f"127.0.0.1:{free_port()}" for key in _DATANODE_PORTS}
        settings = {
            "dfs.replication": str(min(2, len(self.datanodes))),
            "dfs.webhdfs.enabled": "false",
            "dfs.permissions.enabled": "false",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http}",
            "dfs.namenode.name.dir": f"file://{self._folder}/namenode",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # A DataNode that is silent for 2 * 1 + 10 * 1 s is dead.
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            "dfs.heartbeat.interval": "1",
            # Else a writer on the host of a dead one is sent to it, for being near.
            "dfs.namenode.avoid.write.stale.datanode": "true",
            "dfs.namenode.stale.datanode.interval": "3000",
            "dfs.namenode.write.stale.datanode.ratio": "1.0",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.datanode.data.dir": f"file://{self._folder}/{name}.data",
            **local,
        }
        core = {"fs.defaultFS": self.url, "hadoop.tmp.dir": str(self._folder / "tmp")}
        (conf / "core-site.xml").write_text(_xml(core))
        (conf / "hdfs-site.xml").write_text(_xml(settings))
        return conf

    def _command(self, conf: Path, server: str, *arguments: str) -> list[str]:
        jars = unpack(PACKAGE, lambda name: name.endswith(".jar"), constraint=CONSTRAINT)
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        krb5 = "java.security.jgss/sun.security.krb5=ALL-UNNAMED"
        return [
            *("java", *opens, f"--add-exports={krb5}", f"--add-opens={krb5}", "-Xmx256m"),
            f"-Dlog4j.configuration=file:{self._log_settings()}",
            f"-Djava.io.tmpdir={self._folder}",
            *("-cp", f"{conf}:{self._folder / 'www'}:{jars}/*", f"{_SERVER}.{server}"),
            *arguments,
        ]

    def _log_settings(self) -> Path:
        file = self._folder / "log4j.properties"
        file.write_text(
            "log4j.rootLogger=INFO, console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.target=System.err\n"
            "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n\n"
            "log4j.logger.BlockStateChange=WARN\n"
        )
        return file

    def _spawn(self, name: str, server: str, conf: Path) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self._command(conf, server), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


_DATANODE_PORTS = ("dfs.datanode.address", "dfs.datanode.ipc.address", "dfs.datanode.http.address")


def _xml(settings: dict[str, str]) -> str:
    body = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{body}</configuration>\n"
