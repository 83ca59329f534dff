"""The process that calls EC2 for a daemon, forked from a process that has already imported the modules (`preloaded.py`).

The forked process is not a child of the daemon, so the daemon kills it and waits for its end by a pidfd (`NodeProcess`). In all other
respects it is the process that `ipamd/cloud/child.py` starts.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

from ipamd.cloud import ec2_process
from ipamd.cloud.child import Process
from ipamd.cloud.client import Ec2Client
from ipamd.model.record import asdict, dataclass
from ipamd.settings import CloudConfig
from lab.node.errors import NodeError
from lab.node.process import START_TIMEOUT_S, NodeProcess, Spawner

MODULE = ec2_process.__name__


@dataclass(frozen=True, slots=True)
class ForkedProcess(Process):
    """The daemon's view of the forked process. `node_process`: the object that kills the process and waits for its end."""

    node_process: NodeProcess

    def end(self) -> str:
        """See the base class."""
        self.control.close()
        self.node_process.kill()
        return f"ended with {self.node_process.wait(START_TIMEOUT_S)}"


def start(spawner: Spawner, node_pid: int, config: CloudConfig) -> Process:
    """Fork the process in the node whose PID 1 is `node_pid`. Raises: OSError."""
    arguments = [sys.executable, "-m", MODULE, json.dumps(asdict(config))]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = spawner.spawn(
                arguments,
                env=os.environ,
                cwd=str(Path.cwd()),
                stdin=theirs.fileno(),
                stdout=sys.stdout.fileno(),
                stderr=sys.stderr.fileno(),
                node_pid=node_pid,
            )
        except NodeError as error:
            ours.close()
            raise OSError(str(error)) from error
    ours.setblocking(False)
    return ForkedProcess(process.pid, ours, process)


def import_all() -> None:
    """Import every module that the process imports, also those that it imports at its first call to EC2.

    For that an EC2 client is built, which calls nobody.
    """
    config = SimpleNamespace(imds_endpoint="http://127.0.0.1", http_timeout_s=1, ec2_endpoint="http://127.0.0.1")
    Ec2Client(config, region=lambda: "us-west-2")._build()  # type: ignore[arg-type]  # has the fields that `_build` reads
