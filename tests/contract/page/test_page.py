"""The status page over HTTP: what it holds, what it cannot do, and its bounds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ipamd.http.port import SOURCE_MAX
from ipamd.ipamctl import page_state
from ipamd.ipamctl.absence import AbsenceKind
from ipamd.ipamctl.page import ABSENCES, STATIC, Answers
from ipamd.ipamctl.page_state import ATTACHMENTS_MAX, EVENTS_MAX
from ipamd.ipamctl.verb import AwayError
from tests.page import HOSTILE, Shown, add_named
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.stories.stale_reads import run_sandboxes

ROOT = Path(__file__).resolve().parents[3]


def test_the_state_is_what_ipamctl_gets(page: Shown) -> None:
    """Verdict, pool, ENIs, attachments, and the last events with the newest first."""
    status, headers, body = page.get("/state.json")
    state = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert state["status"]["pool"]["assigned_count"] == 2
    assert state["status"]["verdict"]
    assert state["status"]["cut_off_count"] == 0
    assert [eni["assigned_count"] for eni in state["enis"]] == [2, 0]
    assert [one["container_id"] for one in state["attachments"]] == ["b", "a"]
    assigned = [(one["container_id"], one["pod"]) for one in state["events"] if one["event"] == "assigned"]
    assert assigned == [(one["container_id"], one["sandbox_name"]) for one in state["attachments"]]


def test_the_document_loads_nothing_and_runs_only_its_own(page: Shown) -> None:
    """The policy names the digests of the one style and the one script; the document refers to nothing."""
    _, headers, body = page.get("/")
    text = body.decode()
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'" in policy
    assert not re.search(r"\bsrc=|href=|https?://|@import|url\(|\bon[a-z]+=|style=", text)
    assert "innerHTML" not in text
    assert re.search(r"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$", policy)


@pytest.mark.parametrize("path", ["/", "/state.json", "/nothing"])
def test_every_answer_has_the_headers(page: Shown, path: str) -> None:
    """Not kept, not guessed, not framed, not shared with other sites; and a connection serves one request."""
    _, headers, _ = page.get(path)
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["connection"] == "close"
    assert not [name for name in headers if name.startswith("access-control") or name in ("set-cookie", "server")]


def test_names_from_outside_are_escaped(page: Shown) -> None:
    """No character of HTML and no control character is in the JSON, and the name is there all the same."""
    add_named(page.node, "evil", HOSTILE)
    _, _, body = page.get("/state.json")
    assert not re.search(rb"[<>&]|[^ -~]", body)
    (found,) = [one for one in json.loads(body)["attachments"] if one["container_id"] == "evil"]
    assert "<script>" in found["sandbox_name"]
    assert "\\u202e" in found["sandbox_name"]
    assert "\\x1b" in found["sandbox_name"]
    assert b"taken" not in page.get("/")[2]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(page: Shown, method: str) -> None:
    """Only GET and HEAD are answered."""
    before = page.node.datastore.event_counts()
    assert page.get("/state.json", method=method)[0] == 400
    assert page.node.datastore.event_counts() == before


def test_head_has_no_body(page: Shown) -> None:
    """The length is that of the document."""
    status, headers, body = page.get("/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) == len(page.get("/")[2])


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has closed it."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_one_source_holds_few_connections(page: Shown) -> None:
    """The bounds of the metrics port: the oldest connection of a source makes room, one thread serves all, others are answered."""
    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", page.port.port), timeout=PATIENCE_S) for _ in range(SOURCE_MAX + 4)]
    wait_until(lambda: sum(is_closed(sock) for sock in held) >= 4, what="the oldest are closed")
    assert page.get("/state.json")[0] == 200
    assert threading.active_count() <= before, "some of earlier tests may end"
    for sock in held:
        sock.close()


def test_a_long_request_is_closed(page: Shown) -> None:
    """A header without end costs 8 KiB and no answer."""
    with socket.create_connection(("127.0.0.1", page.port.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""


def test_requests_share_a_rendering(page: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look, the state is made once a second."""
    monkeypatch.setattr(page_state, "STATE_AGE_S", 3600.0)
    made: list[int] = []
    state = page.port.answers.state
    page.port.answers.state = lambda: (made.append(1), state())[1]
    for _ in range(5):
        assert page.get("/state.json")[0] == 200
    assert len(made) <= 1


def test_a_daemon_that_is_away_is_told_and_not_shown(
    page: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """503 without the cause for whoever asks, one line for the operator, and the next request may succeed."""
    monkeypatch.setattr(page_state, "STATE_AGE_S", 0.0)

    def away() -> bytes:
        raise AwayError("vpc-ipamd does not answer at /run/secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(page.port.answers, "state", away)
        status, _, body = page.get("/state.json")
        assert status == 503
        assert b"secret" not in body
    assert "does not answer at /run/secret/path" in capsys.readouterr().err
    assert page.get("/state.json")[0] == 200


@pytest.mark.parametrize("kind", AbsenceKind)
def test_the_browser_is_told_why_nobody_answers(page: Shown, kind: AbsenceKind) -> None:
    """Each kind has words of its own, which an empty frame had not."""

    def away() -> bytes:
        raise AwayError("x", kind=kind)

    page.port.answers.state = away
    status, _, body = page.get("/state.json")
    assert status == 503
    assert body.decode().startswith(ABSENCES[kind])
    assert set(ABSENCES) == set(AbsenceKind)
    assert len(set(ABSENCES.values())) == len(ABSENCES)


def test_each_node_has_a_title_of_its_own(page: Shown) -> None:
    """Tabs of several nodes are told apart; a strange name stays text."""
    assert f"<title>{page.node_name} - vpc-ipamd</title>" in page.get("/")[2].decode()
    strange = Answers(token_file=None, state=lambda: b"", node="</title><script>é")
    assert strange.html.count(b"<script>") == 1
    assert strange.html.isascii()


def test_a_long_history_and_many_sandboxes_are_cut(page: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are shown; how many there are is said."""
    monkeypatch.setattr(page_state, "ATTACHMENTS_MAX", 3)
    monkeypatch.setattr(page_state, "STATE_AGE_S", 0.0)
    run_sandboxes(page.node, *(f"c{number}" for number in range(10, 30)))
    state = json.loads(page.get("/state.json")[2])
    assert len(state["events"]) == EVENTS_MAX
    assert state["attachment_count"] == 22
    assert [one["container_id"] for one in state["attachments"]] == ["c29", "c28", "c27"]
    assert ATTACHMENTS_MAX >= 737  # c5n.18xlarge and its like, in amazon-vpc-cni-k8s misc/eni-max-pods.txt


def test_the_files_are_part_of_the_package() -> None:
    """What a wheel must contain."""
    assert sorted(path.name for path in STATIC.iterdir()) == ["page.css", "page.html", "page.js"]
    assert all(path.read_text(encoding="ascii") for path in STATIC.iterdir())


def test_messages_that_the_documentation_quotes_are_said() -> None:
    """What docs/page.md quotes is what the code says."""
    text = (ROOT / "docs" / "page.md").read_text()
    sources = (
        ROOT / "ipamd" / "ipamctl" / "page_access.py",
        ROOT / "ipamd" / "ipamctl" / "verbs" / "page.py",
    )
    code = " ".join(path.read_text() for path in sources)
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.M)
    assert len(rows) == 2
    for part in ("it must hold a token of", "cannot serve the page on"):
        assert part in code
        assert any(part in row for row in rows)
