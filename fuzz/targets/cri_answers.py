"""The container runtime's answers: random and damaged protobuf through the real client. A list is complete or an error (I11)."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import grpc

from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.model.errors import IpamError
from ipamd.pb import cri_pb2
from ipamd.runtime.cri import CriRuntime

IDS = ("a", "5a" * 32, "x" * 200, "x" * 201, "", "-", "a/b", "\x1b[1m", "\u00e4", "a\n")
TEXTS = ("", "default", "pod", "x" * 300, "\x1b[2J", "\u00e4", "\x00")
SERVICE = "runtime.v1.RuntimeService"
EVENTS_READ_MAX = 20


class CriAnswers(Target):
    """A case: `list`, `version` (bytes of an answer) and `events` (bytes of each event)."""

    memory_bytes = 192 << 20
    """A list of 20,000 sandboxes has up to 16 MiB, and the runtime is in this process too: 140 MiB together (measured)."""

    def __init__(self) -> None:
        self._log = LogSink()
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._case: Case = {"list": b"", "version": b"", "events": []}
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", 128 << 20)])
        handlers: dict[str, Any] = {
            "Version": grpc.unary_unary_rpc_method_handler(lambda _request, _context: blob(self._case["version"])),
            "Status": grpc.unary_unary_rpc_method_handler(lambda _request, _context: blob(self._case.get("status", ""))),
            "ListPodSandbox": grpc.unary_unary_rpc_method_handler(lambda _request, _context: blob(self._case["list"])),
            "GetContainerEvents": grpc.unary_stream_rpc_method_handler(self._events),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        path = self._directory / "cri.sock"
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()
        self._runtime = CriRuntime(socket=str(path))
        self._lock = threading.Lock()

    def generate(self, random: Random) -> Case:
        if random.random() < 0.003:
            item = cri_pb2.ListPodSandboxResponse(items=[_sandbox(random)]).SerializeToString()
            return {"list": [(item, random.choice((1000, 20_000)))], "version": b"", "events": []}
        sandboxes = cri_pb2.ListPodSandboxResponse(items=[_sandbox(random) for _ in range(random.randrange(5))])
        version = cri_pb2.VersionResponse(
            version="0.1.0", runtime_name=random.choice(TEXTS), runtime_version="1"
        ).SerializeToString()
        events = [_event(random).SerializeToString() for _ in range(random.choice((0, 0, 0, 0, 0, 0, 0, 1, 3)))]
        return {
            "list": _perhaps_damaged(random, sandboxes.SerializeToString()),
            "version": _perhaps_damaged(random, version),
            "status": _perhaps_damaged(random, _status(random).SerializeToString()),
            "events": [_perhaps_damaged(random, event) for event in events],
        }

    def run(self, case: Case) -> None:
        self._case = case
        with contextlib.suppress(IpamError):
            _judge_list(self._runtime.sandboxes(), blob(case["list"]))
        with contextlib.suppress(IpamError):
            self._runtime.info()
        with contextlib.suppress(IpamError):
            str(self._runtime.plugin_directories())
        if case["events"]:
            with contextlib.suppress(IpamError):
                for event in itertools.islice(self._runtime.events(), EVENTS_READ_MAX):
                    str(event)
        self._log.judge()

    def check(self) -> None:
        good = cri_pb2.ListPodSandboxResponse(items=[cri_pb2.PodSandbox(id="a", state=cri_pb2.SANDBOX_READY)]).SerializeToString()
        self._case = {"list": good, "version": b"", "events": []}
        if [sandbox.container_id for sandbox in self._runtime.sandboxes()] != ["a"]:
            raise Violation("unanswered", "a good list is not read any more")

    def close(self) -> None:
        self._runtime.close()
        self._server.stop(None)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _events(self, _request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        for event in self._case["events"]:
            yield blob(event)


def _perhaps_damaged(random: Random, data: bytes) -> bytes:
    kind = random.random()
    return noise(random, 300) if kind < 0.05 else mutated(random, data) if kind < 0.7 else data


def _sandbox(random: Random) -> cri_pb2.PodSandbox:
    return cri_pb2.PodSandbox(
        id=random.choice(IDS) if random.random() < 0.3 else f"s{random.randrange(1000)}",
        metadata=cri_pb2.PodSandboxMetadata(name=random.choice(TEXTS), namespace=random.choice(TEXTS), uid=random.choice(TEXTS)),
        state=random.choice((cri_pb2.SANDBOX_READY, cri_pb2.SANDBOX_NOTREADY)),
        annotations={random.choice(TEXTS): random.choice(TEXTS)} if random.random() < 0.3 else {},
    )


def _status(random: Random) -> cri_pb2.StatusResponse:
    config = random.choice(('{"cni": {"binDir": "/opt/cni/bin", "binDirs": ["/a", 5, "b"]}}', '{"cni": []}', "[" * 5000, "", "7"))
    return cri_pb2.StatusResponse(info={random.choice(("config", "golang")): config})


def _event(random: Random) -> cri_pb2.ContainerEventResponse:
    return cri_pb2.ContainerEventResponse(
        container_id=random.choice(IDS),
        container_event_type=random.randrange(5),  # type: ignore[arg-type]  # unknown ones too
        pod_sandbox_status=cri_pb2.PodSandboxStatus(id=random.choice(IDS)),
    )


def _judge_list(listed: Any, data: bytes) -> None:
    """A list that was taken for complete has every sandbox of the message."""
    expected = [item.id for item in cri_pb2.ListPodSandboxResponse.FromString(data).items]
    if [sandbox.container_id for sandbox in listed] != expected:
        raise Violation("short list", f"{len(listed)} sandboxes instead of {len(expected)}")


def make() -> Target:
    """Make the target."""
    return CriAnswers()
