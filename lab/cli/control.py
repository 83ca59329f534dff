"""The control socket of a background lab: how `vpc-lab` talks to it.

One Unix stream socket per lab, /run/vpc-lab/NAME/control; the directory's mode admits root only. A connection carries one JSON
request (for `exec` with the caller's standard streams as file descriptors) and one JSON answer. The verbs are the methods below; an
unknown verb or a LabError is answered with {"error": sentence}.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.cli.description import describe
from lab.cli.handwork import act
from lab.errors import LabError
from lab.fabric.ping import TIMEOUT_S
from lab.node.errors import SandboxError
from lab.node.process import BASE_ENVIRONMENT, NodeProcess
from lab.node.workspace import STATE_ROOT

if TYPE_CHECKING:
    from lab.cli.aws_nodes import AwsNodes
    from lab.cli.daemons import Daemons
    from lab.lab import Lab  # at run time its imports (gRPC, the servers) are for the lab process alone

log = logging.getLogger(__name__)

Answer = dict[str, Any]
REQUEST_MAX_BYTES = 1 << 20
FDS_MAX = 8


class ControlError(LabError):
    """No such lab, or the lab refused the request."""


def control_path(name: str) -> Path:
    """Where a lab listens."""
    return STATE_ROOT / name / "control"


def ask(name: str, verb: str, *, fds: Sequence[int] = (), timeout_s: float | None = 60.0, **arguments: Any) -> Answer:
    """Send one request to a lab and return its answer.

    Raises: ControlError with the lab's sentence, or one that says how to start a lab.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(control_path(name)))
            socket.send_fds(sock, [json.dumps({"verb": verb, **arguments}).encode()], list(fds))
            sock.shutdown(socket.SHUT_WR)
            answer: Answer = json.loads(_read_all(sock) or b'{"error": "the lab ended before it answered"}')
        except FileNotFoundError:
            raise ControlError(f"no lab {name!r} is up; start one with `vpc-lab up --name {name}`") from None
        except ConnectionRefusedError:
            raise ControlError(f"lab {name!r} was killed; remove what is left with `vpc-lab down --name {name}`") from None
        except TimeoutError:
            raise ControlError(f"lab {name!r} did not answer {verb} within {timeout_s} s") from None
    if "error" in answer:
        raise ControlError(answer["error"])
    return answer


class ControlServer:
    """Serves one Lab, one thread per request; `stopping` is set by the verb `down`."""

    def __init__(self, lab: Lab, daemons: Daemons, aws_nodes: AwsNodes) -> None:
        self.stopping = threading.Event()
        self._lab = lab
        self._aws_nodes = aws_nodes
        self._daemons = daemons
        self._socket = socket.socket(socket.AF_UNIX)
        self._verbs: dict[str, Callable[..., Answer]] = {
            "status": self._status,
            "pods": self._pods,
            "run": self._run,
            "remove": self._remove,
            "exec": self._exec,
            "daemon": self._daemon,
            "aws_node": self._aws_node,
            "await_daemons": self._await_daemons,
            "ping": self._ping,
            "faults": self._faults,
            "hand": lambda **arguments: act(self._lab, **arguments),
            "down": self._down,
        }

    def start(self) -> None:
        """Listen; returns at once."""
        self._socket.bind(str(control_path(self._lab.name)))
        self._socket.listen(16)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def stop(self) -> None:
        """Stop listening; requests in progress are cut by the process's end."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # stopped
            threading.Thread(target=self._serve, args=(connection,), name="control-request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            data, fds, _, _ = socket.recv_fds(connection, REQUEST_MAX_BYTES, FDS_MAX)
            try:
                answer = self._answer(data + _read_all(connection), connection, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            with suppress(OSError):  # the asker went away
                connection.sendall(json.dumps(answer, default=str).encode())

    def _answer(self, data: bytes, connection: socket.socket, fds: list[int]) -> Answer:
        try:
            request = json.loads(data)
            verb = request.pop("verb")
            if verb == "exec":
                return self._exec(connection, fds, **request)
            return self._verbs[verb](**request)
        except LabError as exc:
            return {"error": str(exc)}
        except Exception as exc:  # top of a request
            log.exception("request failed: %r", data)
            return {"error": f"bad request or a defect of the lab: {type(exc).__name__}: {exc}"}

    def _status(self) -> Answer:
        return describe(self._lab)

    def _pods(self, *, node: str) -> Answer:
        cri = self._lab.node(node).cri
        pods = []
        for sandbox in cri.list():
            address = cri.status(sandbox.sandbox_id).address
            pods.append({**vars(sandbox), "address": str(address) if address else None})
        return {"pods": pods}

    def _run(self, *, node: str, count: int, prefix: str = "pod") -> Answer:
        cri = self._lab.node(node).cri
        taken = {sandbox.name for sandbox in cri.list()}
        names = (name for number in range(count + len(taken)) if (name := f"{prefix}-{number}") not in taken)
        return {"run": [cri.run_sandbox(next(names)) for _ in range(count)]}

    def _remove(self, *, node: str, sandbox: str = "") -> Answer:
        """Remove one sandbox, or all; every one is tried, and all failures are reported together."""
        cri = self._lab.node(node).cri
        removed, failures = [], []
        for sandbox_id in [sandbox] if sandbox else [each.sandbox_id for each in cri.list()]:
            try:
                cri.stop(sandbox_id)
                cri.remove(sandbox_id)
                removed.append(sandbox_id)
            except SandboxError as exc:
                failures.append(str(exc))
        if failures:
            raise ControlError("; ".join(failures))
        return {"removed": removed}

    def _exec(self, connection: socket.socket, fds: list[int], *, node: str, argv: list[str], sandbox: str = "") -> Answer:
        found = self._lab.node(node)
        netns = found.inside_netns_path(sandbox) if sandbox else ""
        env = found.daemon_environment(self._lab.vpc.region)
        env["PATH"] = f"{Path(sys.executable).parent}:{BASE_ENVIRONMENT['PATH']}"  # where ipamctl is
        process = found.spawn(argv, stdin=fds[0], stdout=fds[1], stderr=fds[2], netns=netns, env=env)
        return {"exit_code": _wait_while_connected(process, connection)}

    def _daemon(self, *, node: str, action: str, env: dict[str, str], is_awaited: bool) -> Answer:
        if action == "log":
            return {"log": self._daemons.log(node)}
        if action in ("kill", "restart"):
            self._daemons.kill(node, must_run=action == "kill")
        if action in ("start", "restart"):
            self._daemons.start(node, env=env)
            if is_awaited:
                self._daemons.wait_ready(node)
        return {"pid": self._daemons.pid(node)}

    def _aws_node(self, *, node: str, action: str) -> Answer:
        if action == "log":
            return {"log": self._aws_nodes.log(node)}
        if action == "start":
            self._aws_nodes.start(node)
        elif action == "kill":
            self._aws_nodes.kill(node)
        return {"pid": self._aws_nodes.pid(node), "allocations": self._aws_nodes.allocations(node)}

    def _await_daemons(self) -> Answer:
        self._daemons.wait_ready(*self._lab.nodes)
        return {"ready": list(self._lab.nodes)}

    def _ping(self, *, source: str, sandbox: str = "", targets: list[str], timeout_s: float = TIMEOUT_S) -> Answer:
        asker = (self._lab.node(source), sandbox) if sandbox else source
        answers = self._lab.ping(source=asker, targets=targets, timeout_s=timeout_s)
        return {"answers": {str(target): answered for target, answered in answers.items()}}

    def _faults(self, *, spec: dict[str, object] | None = None, clear: bool = False) -> Answer:
        if clear:
            self._lab.faults.clear()
        if spec:
            self._lab.faults.apply(spec)
        return {"faults": self._lab.faults.as_dict()}

    def _down(self) -> Answer:
        self.stopping.set()
        return {"stopping": True}


def _wait_while_connected(process: NodeProcess, connection: socket.socket) -> int:
    """Wait for the process; end it if the asker goes away (its Ctrl-C)."""
    poll = select.poll()
    poll.register(connection, 0)  # hang-up only
    poll.register(process.fileno(), select.POLLIN)
    events = dict(poll.poll())
    if connection.fileno() in events:
        process.kill()
    return process.wait()


def _read_all(sock: socket.socket) -> bytes:
    chunks = []
    while chunk := sock.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)
