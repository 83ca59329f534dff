"""What the plugin's contract tests share: the built plugin, a way to run it as a process, a real gRPC daemon and raw peers.

Everything lives below tmp_path and on Unix sockets there. Nothing sleeps to wait for something: servers listen before a plugin
is started, and processes are awaited with a bound.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from cni_plugin.build import build
from ipamd.pb import cni_pb2, cni_pb2_grpc
from lab.node.plugin import onefile

REPOSITORY = Path(__file__).parents[3]
DEBIAN_PYTHON = Path("/usr/bin/python3")
ONEFILE_ARM64 = REPOSITORY / "build" / "vpc-cni-arm64"
QEMU = shutil.which("qemu-aarch64-static")
# `make test-all` runs the suite with arm64's file too. QEMU makes every start slow, hence not always.
STATIC = ["onefile", *(["arm64"] if os.environ.get("VPC_CNI_ARM64") else [])]
RUN_BOUND_S = 70  # above the longest deadline of a verb
CONTAINER_ID = "5a" * 32


@dataclass(frozen=True)
class Result:
    """What the runtime sees of one invocation."""

    status: int
    stdout: bytes
    stderr: bytes
    elapsed_s: float

    def document(self) -> dict[str, Any]:
        """The document on standard output; nothing may stand beside it, and standard error is empty."""
        assert self.stderr == b""
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed

    def error(self, code: int) -> dict[str, Any]:
        """Demand a CNI error of this code in exactly the form of the specification."""
        document = self.document()
        assert (self.status, document["code"]) == (1, code), document
        assert list(document) == ["cniVersion", "code", "msg", "details"]
        return document


@dataclass
class Plugin:
    """Starts the plugin as a runtime does: environment, standard input, nothing else."""

    argv: list[str]
    run_dir: Path
    extra_environment: dict[str, str] = field(default_factory=dict)

    def environment(self, verb: str, **variables: str | bytes | None) -> dict[str | bytes, str | bytes]:
        """A complete environment for `verb`; None removes a variable."""
        values: dict[str, str | bytes | None] = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": CONTAINER_ID,
            "CNI_IFNAME": "eth0",
            "CNI_NETNS": "/var/run/netns/sandbox",
            "CNI_ARGS": "IgnoreUnknown=1",
            "CNI_PATH": "/opt/cni/bin",
            "VPC_IPAMD_RUN_DIR": str(self.run_dir),
            **self.extra_environment,
            **variables,
        }
        return {name: value for name, value in values.items() if value is not None}

    def start(self, verb: str, **variables: str | bytes | None) -> subprocess.Popen[bytes]:
        """Start with pipes on all three descriptors."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self.argv, env=self.environment(verb, **variables), stdin=pipe, stdout=pipe, stderr=pipe, cwd="/")

    def run(self, verb: str, config: bytes = b'{"cniVersion":"1.0.0"}', **variables: str | bytes | None) -> Result:
        """Run to the end."""
        started = time.monotonic()
        process = self.start(verb, **variables)
        try:
            stdout, stderr = process.communicate(config, timeout=RUN_BOUND_S)
        finally:
            process.kill()
        return Result(process.returncode, stdout, stderr, time.monotonic() - started)


class Daemon(cni_pb2_grpc.CniServicer):
    """A real grpcio server that records requests and answers with `reply` or aborts with `abort`."""

    def __init__(self) -> None:
        self.requests: list[cni_pb2.ExecRequest] = []
        self.remaining_s: list[float] = []
        self.reply: Callable[[cni_pb2.ExecRequest], cni_pb2.ExecReply] = lambda _: cni_pb2.ExecReply(protocol=1)
        self.abort: tuple[grpc.StatusCode, str] | None = None

    def Exec(self, request: cni_pb2.ExecRequest, context: Any) -> cni_pb2.ExecReply:
        abort = self.abort  # of now: who sees the request may change it for the next
        self.requests.append(request)
        self.remaining_s.append(context.time_remaining())
        if abort:
            context.abort(*abort)
        return self.reply(request)


@contextlib.contextmanager
def serving(run_dir: Path, daemon: Daemon) -> Iterator[None]:
    """Serve `daemon` on the run directory's socket."""
    server = grpc.server(
        futures.ThreadPoolExecutor(8),
        options=[("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)],
    )
    cni_pb2_grpc.add_CniServicer_to_server(daemon, server)
    server.add_insecure_port(f"unix:{run_dir}/ipamd.sock")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait(10)


@contextlib.contextmanager
def peer(run_dir: Path, behaviour: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listen with a raw socket and treat every connection with `behaviour` until the test is over."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{run_dir}/ipamd.sock")
    listener.listen(8)
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(RUN_BOUND_S)
            connections.append(connection)
            with contextlib.suppress(OSError):
                behaviour(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        thread.join(10)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run directory as the daemon makes it."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The one-file plugin for Debian's interpreter and for the one that runs the tests."""
    directory = tmp_path_factory.mktemp("vpc-cni")
    pythons = {"debian": DEBIAN_PYTHON, "tests": Path(sys.executable)}
    files = {}
    for name, python in pythons.items():
        if python.exists():
            files[name] = directory / name / "vpc-cni"
            build(python, files[name])
    return files


def made(kind: str, built: dict[str, Path], run_dir: Path) -> Plugin:
    """The plugin of this kind: interpreted by "debian" or "tests", or static: "onefile", "arm64". Skips what is not here."""
    if kind == "onefile":
        static = onefile()
        if static is None:
            pytest.skip("build/vpc-cni is not built from these sources: make plugin")
        return Plugin([str(static)], run_dir)
    if kind == "arm64":
        static = onefile(ONEFILE_ARM64)
        if static is None or QEMU is None:
            pytest.skip("build/vpc-cni-arm64 is not built from these sources, or no qemu-aarch64-static: make plugin-arm64")
        return Plugin([QEMU, str(static)], run_dir)
    if kind not in built:
        pytest.skip(f"{DEBIAN_PYTHON} is not installed")
    return Plugin([str(built[kind])], run_dir)


@pytest.fixture(params=["debian", "tests", *STATIC])
def plugin(request: pytest.FixtureRequest, built: dict[str, Path], run_dir: Path) -> Plugin:
    """The plugin as installed, once per interpreter that is here and as the static file."""
    return made(request.param, built, run_dir)


@pytest.fixture(params=["interpreted", *STATIC])
def any_plugin(request: pytest.FixtureRequest, built: dict[str, Path], run_dir: Path) -> Plugin:
    """The plugin once per runtime, where the version of the interpreter makes no difference to what is tested."""
    return made(next(iter(built)) if request.param == "interpreted" else request.param, built, run_dir)


@pytest.fixture(params=STATIC)
def static_plugin(request: pytest.FixtureRequest, built: dict[str, Path], run_dir: Path) -> Plugin:
    """The plugin as a static file, for each machine that can be run here."""
    return made(request.param, built, run_dir)


@pytest.fixture
def onefile_plugin(built: dict[str, Path], run_dir: Path) -> Plugin:
    """The plugin as a static file for this machine."""
    return made("onefile", built, run_dir)


@pytest.fixture
def interpreted(built: dict[str, Path], run_dir: Path) -> Plugin:
    """The interpreted plugin, for what concerns its file."""
    return made(next(iter(built)), built, run_dir)


@pytest.fixture
def instrumented(run_dir: Path) -> Callable[..., Plugin]:
    """The plugin from source behind a seam that cuts waits short or halts at a system call (`instrumented_plugin.py`)."""

    def make(**settings: str) -> Plugin:
        argv = [sys.executable, "-S", str(Path(__file__).with_name("instrumented_plugin.py"))]
        return Plugin(argv, run_dir, {"PYTHONPATH": str(REPOSITORY), **settings})

    return make


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[Daemon]:
    """A serving daemon."""
    daemon = Daemon()
    with serving(run_dir, daemon):
        yield daemon


@pytest.fixture
def serve(run_dir: Path) -> Callable[[Daemon], contextlib.AbstractContextManager[None]]:
    """Make a daemon serve from now on, within the test."""
    return lambda daemon: serving(run_dir, daemon)


@pytest.fixture
def raw_peer(run_dir: Path) -> Callable[[Callable[[socket.socket], None]], contextlib.AbstractContextManager[None]]:
    """Put something else than a daemon on the socket."""
    return lambda behaviour: peer(run_dir, behaviour)


@pytest.fixture
def new_daemon() -> Callable[[], Daemon]:
    """A daemon that does not serve yet."""
    return Daemon


@pytest.fixture
def spooled(run_dir: Path) -> Callable[[], list[cni_pb2.ExecRequest]]:
    """Read the spool as the daemon does: entries whose name begins with `del-`."""

    def read() -> list[cni_pb2.ExecRequest]:
        names = sorted(os.listdir(run_dir / "spool")) if (run_dir / "spool").exists() else []
        entries = [run_dir / "spool" / name for name in names if name.startswith("del-")]
        return [cni_pb2.ExecRequest.FromString(entry.read_bytes()) for entry in entries]

    return read
