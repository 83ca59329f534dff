"""Malformed answers, which some runtimes do give: each is an error, none is taken for a short list (I11)."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from ipamd.grpc_client import MAX_ANSWER_BYTES
from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4
from ipamd.model.legs.branch_eni import parse_pod_eni
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.pod_annotations import ANNOTATION_MAX, POD_ENI
from ipamd.model.sandbox import EventKind
from ipamd.pb import cri_pb2
from ipamd.runtime import cri as cri_module
from ipamd.runtime.cri import CriRuntime
from tests.contract.runtime.conftest import Listener
from tests.contract.runtime.server import CutOffCri, FakeCri, event, pod_sandbox
from tests.errors import failed
from tests.patience import PATIENCE_S

MIB = 1024 * 1024


def list_bytes(*, count: int, padding_bytes: int) -> bytes:
    """A list of `count` sandboxes, each with a long annotation."""
    items = [pod_sandbox(f"s{number}", padding_bytes=padding_bytes) for number in range(count)]
    return cri_pb2.ListPodSandboxResponse(items=items).SerializeToString()


def test_a_list_of_20_mib_is_read_whole(server: FakeCri, cri: CriRuntime) -> None:
    """Crowded nodes send more than the 16 MiB that are CRI's custom, and far more than gRPC's default of 4."""
    answer = list_bytes(count=200, padding_bytes=MIB // 10)
    assert len(answer) > 19 * MIB
    server.list_answer = lambda: answer
    assert len(cri.sandboxes()) == 200


def test_a_list_beyond_our_limit_is_refused_whole(server: FakeCri, cri: CriRuntime) -> None:
    """Memory is bounded; the message says how large a list may be and what to do."""
    answer = list_bytes(count=1, padding_bytes=MAX_ANSWER_BYTES)
    server.list_answer = lambda: answer
    with pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.RUNTIME_ANSWER_TOO_LARGE, limit_mib=64)):
        cri.sandboxes()
    server.list_answer = None
    assert cri.sandboxes() == ()


@pytest.mark.parametrize("ends_with_success", [False, True])
def test_a_list_that_is_cut_off_is_an_error(tmp_path: Path, ends_with_success: bool) -> None:
    """The connection dies inside the message, or the call ends with success before the message is whole."""
    code = FailureCode.RUNTIME_ANSWER_CUT_OFF if ends_with_success else FailureCode.RUNTIME_SILENT
    server = CutOffCri(str(tmp_path / "cri.sock"), ends_with_success=ends_with_success)
    with (
        closing(server),
        closing(CriRuntime(socket=str(tmp_path / "cri.sock"), call_timeout_s=2.0)) as cri,
        pytest.raises(RuntimeUnreachableError, check=failed(code, call="ListPodSandbox")),
    ):
        cri.sandboxes()


@pytest.mark.parametrize("answer", [b"\x0a\xff", list_bytes(count=3, padding_bytes=0)[:-2], b"\x0a\x04\x0a\x02\xff\xfe"])
def test_bytes_that_are_no_list_are_an_error(server: FakeCri, cri: CriRuntime, answer: bytes) -> None:
    """Garbage, a message cut inside a field, an ID that is not text."""
    server.list_answer = lambda: answer
    with pytest.raises(RuntimeUnreachableError):
        cri.sandboxes()


@pytest.mark.parametrize("sandbox_id", ["", "../../etc", "a b"])
def test_a_sandbox_without_a_usable_id_spoils_the_list(server: FakeCri, cri: CriRuntime, sandbox_id: str) -> None:
    """Which sandbox it is cannot be known: it may be any of ours, so the whole list is not believed."""
    server.run("good")
    server.sandboxes["bad"] = pod_sandbox(sandbox_id)
    with pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.SANDBOX_WITHOUT_ID)):
        cri.sandboxes()


def test_a_state_that_we_do_not_know_is_a_reason_to_keep(server: FakeCri, cri: CriRuntime) -> None:
    """A later CRI may have more states: the sandbox exists in each of them."""
    server.list_answer = lambda: cri_pb2.ListPodSandboxResponse(items=[cri_pb2.PodSandbox(id="a", state=7)]).SerializeToString()
    assert [each.container_id for each in cri.sandboxes()] == ["a"]


def test_a_slow_list_ends_at_its_deadline(server: FakeCri) -> None:
    """A runtime that hangs does not hang us."""
    server.hold_list = threading.Event()
    with (
        closing(CriRuntime(socket=server.path, call_timeout_s=1.0)) as cri,
        pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.RUNTIME_SILENT)),
    ):
        cri.sandboxes()


def test_a_stream_that_dies_with_an_error_says_which(server: FakeCri, cri: CriRuntime) -> None:
    """What was sent before it died was heard."""
    listener = Listener(cri)
    listener.wait_open()
    server.emit("a", cri_pb2.CONTAINER_CREATED_EVENT, sandbox_id="a")
    server.send(grpc.StatusCode.INTERNAL)
    error = listener.wait_end()
    assert "INTERNAL: so it was told" in str(error)
    assert [each.container_id for each in listener.heard] == ["", "a"]


def test_an_event_that_is_no_event_breaks_the_stream_and_nothing_else(server: FakeCri, cri: CriRuntime) -> None:
    """Garbage on the stream is one broken stream."""
    listener = Listener(cri)
    listener.wait_open()
    server.send(b"\x0a\xff")
    assert isinstance(listener.wait_end(), RuntimeUnreachableError)
    assert cri.sandboxes() == ()


def test_strange_events_are_hints_like_any_other(server: FakeCri, cri: CriRuntime) -> None:
    """An unknown type, an event that names nothing, and a container's event, which names its sandbox."""
    listener = Listener(cri)
    listener.wait_open()
    server.emit("a", 9, sandbox_id="a")
    server.send(event("", cri_pb2.CONTAINER_CREATED_EVENT))
    server.emit("app", cri_pb2.CONTAINER_STARTED_EVENT, sandbox_id="a")
    heard = [(each.container_id, each.sandbox_id, each.kind) for each in listener.wait_heard(3)]
    assert heard == [("a", "a", EventKind.OTHER), ("", "", EventKind.CREATED), ("app", "a", EventKind.STARTED)]
    cri.cancel_events()
    listener.wait_end()


def test_a_stream_that_ends_at_once_is_no_stream(server: FakeCri, cri: CriRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRI-O without enable_pod_events ends the call with success: that is a runtime without events, not one that broke."""
    monkeypatch.setattr(cri_module, "OPEN_GRACE_S", PATIENCE_S)  # its end comes in milliseconds, or later on a busy machine
    server.ends_stream_at_once = True
    error = Listener(cri).wait_end()
    assert isinstance(error, EventsUnsupportedError)
    assert "enable_pod_events" in str(error)


def test_a_list_goes_on_beside_an_open_stream(server: FakeCri, cri: CriRuntime) -> None:
    """A silent stream holds up nothing."""
    listener = Listener(cri)
    listener.wait_open()
    for number in range(20):
        server.run(f"s{number}")
        assert len(cri.sandboxes()) == number + 1
    cri.cancel_events()
    listener.wait_end()


def test_a_silent_stream_wakes_nobody(server: FakeCri, cri: CriRuntime) -> None:
    """The thread that listens sleeps until something comes: grpcio alone looks up ten times a second."""
    listener = Listener(cri)
    listener.wait_open()
    time.sleep(0.2)  # the thread has gone back to its wait
    before = _turns(listener)
    time.sleep(2.0)  # nothing to await
    assert _turns(listener) - before <= 2
    server.emit("a", cri_pb2.CONTAINER_CREATED_EVENT)
    assert [each.container_id for each in listener.wait_heard(1)] == ["a"]
    cri.cancel_events()
    listener.wait_end()


def _turns(listener: Listener) -> int:
    """How often its thread has gone to sleep."""
    status = Path(f"/proc/self/task/{listener.thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_of_annotations_the_branch_enis_alone_is_kept(server: FakeCri, cri: CriRuntime) -> None:
    """A pod's annotations may be 256 KiB; of one that is too long enough is kept to be refused as such."""
    for name, text in (("a", "[{}]"), ("b", "x" * 200_000), ("c", "")):
        annotations = {"other": "y" * 50_000} | ({POD_ENI: text} if text else {})
        server.sandboxes[name] = cri_pb2.PodSandbox(
            id=name, metadata=cri_pb2.PodSandboxMetadata(name=name, namespace="default", uid="uid"), annotations=annotations
        )
    found = {one.container_id: one.eni_annotation for one in cri.sandboxes()}
    assert (found["a"], len(found["b"]), found["c"]) == ("[{}]", ANNOTATION_MAX + 1, "")
    with pytest.raises(BranchAnnotationError):
        parse_pod_eni(found["b"], family=IPV4)


def test_a_stream_without_a_thread_is_opened_again(server: FakeCri, cri: CriRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """grpcio would count the stream for ever, and no later stream of that channel would hear of an event."""

    start, ours = threading.Thread.start, threading.current_thread()

    def refuse(thread: threading.Thread) -> None:
        if threading.current_thread() is ours:
            raise RuntimeError("can't start new thread")
        start(thread)  # the server's

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeUnreachableError):
            next(cri.events())
    events = cri.events()
    assert next(events).kind is EventKind.SUBSCRIBED
    server.send(event("a", cri_pb2.CONTAINER_STARTED_EVENT))
    assert next(events).container_id == "a"
