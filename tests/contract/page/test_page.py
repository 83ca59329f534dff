"""The page for people over HTTP: who may read it, what it holds, what it cannot do, and its bounds."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ipamd import daemon
from ipamd.metrics_port import SOURCE_MAX
from ipamd.model.errors import DatastoreError, SettingsError
from ipamd.page import port as page_port
from ipamd.page.access import TOKEN_MIN
from ipamd.page.document import STATIC
from ipamd.page.port import serve
from ipamd.page.state import ATTACHMENTS_MAX, EVENTS_MAX
from ipamd.settings import load
from tests.fakes.node import FakeNode
from tests.page import HOSTILE, Shown, add_named, shown
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.stories.stale_reads import run_sandboxes

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two sandboxes."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    yield made
    made.datastore.close()


@pytest.fixture
def page(node: FakeNode) -> Iterator[Shown]:
    """Its page on loopback, without a token."""
    with shown(node) as made:
        yield made


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token, as a Secret is mounted."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def basic(token: str) -> dict[str, str]:
    """What a browser sends after it has asked a person."""
    return {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


def test_the_state_is_what_ipamctl_gets(page: Shown) -> None:
    """Verdict, pool, ENIs, attachments, and the last events with the newest first."""
    status, headers, body = page.get("/state.json")
    state = json.loads(body)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert state["status"]["pool"]["assigned_count"] == 2
    assert state["status"]["verdict"]
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


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:61676"])
def test_loopback_takes_its_own_names(page: Shown, host: str) -> None:
    """With any port, because a port-forward has another."""
    assert page.get("/state.json", {"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:61676", "localhost.evil.example", "10.0.0.10", "127.0.0.1.nip.io"]
)
def test_another_name_is_another_site(page: Shown, host: str) -> None:
    """DNS rebinding: a site's own name that resolves to 127.0.0.1 is not answered, on any path."""
    for path in ("/", "/state.json", "/nothing"):
        status, _, body = page.get(path, {"Host": host})
        assert status == 421
        assert b"verdict" not in body


@pytest.mark.parametrize(
    "head",
    [b"", b"Host: localhost\r\nHost: evil\r\n", b"Host: a b\r\n", b"Host: localhost\r\n folded: x\r\n", b"Host : localhost\r\n"],
    ids=["none", "two", "space", "folded", "space before the colon"],
)
def test_a_request_without_one_host_is_refused(page: Shown, head: bytes) -> None:
    """None, two, folded lines, a name with a space: what two parsers could read in two ways is not read at all."""
    with socket.create_connection(("127.0.0.1", page.port.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + head + b"\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")


def test_another_sites_script_may_not_read(page: Shown) -> None:
    """A browser says where a request comes from; a link from elsewhere may lead here."""
    assert page.get("/state.json", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})[0] == 403
    assert page.get("/state.json", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"})[0] == 403
    assert page.get("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert page.get("/state.json", {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"})[0] == 200


def test_a_token_is_asked_for(node: FakeNode, token_file: Path) -> None:
    """As a bearer or as a password; without it nothing is told, not even the document, whatever the name."""
    with shown(node, token_file=token_file) as page:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN[:-1]}"}, basic("wrong"), basic(""),
                        {"Authorization": "Basic ???"}, {"Authorization": TOKEN}, {"Authorization": "Bearer \xff"}):  # fmt: skip
            for path in ("/", "/state.json", "/nothing"):
                status, told, body = page.get(path, headers)
                assert (status, told["www-authenticate"].partition(" ")[0]) == (401, "Basic")
                assert b"verdict" not in body
        for headers in ({"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"bearer  {TOKEN}"}, basic(TOKEN)):
            assert page.get("/state.json", headers)[0] == 200
        assert page.get("/", basic(TOKEN) | {"Host": "ip-10-0-0-10.ec2.internal:61676"})[0] == 200


def test_a_token_that_changes_is_read_again(node: FakeNode, token_file: Path) -> None:
    """A Secret is replaced by a rename; a file that is gone or empty lets nobody in."""
    with shown(node, token_file=token_file) as page:
        fresh = "f" * TOKEN_MIN
        replacement = token_file.with_name("new")
        replacement.write_text(fresh)
        os.replace(replacement, token_file)
        assert page.get("/", basic(TOKEN))[0] == 401
        assert page.get("/", basic(fresh))[0] == 200
        token_file.write_text("")
        assert page.get("/", basic(""))[0] == 401
        token_file.unlink()
        assert page.get("/", basic(fresh))[0] == 401
        token_file.write_text(TOKEN)
        assert page.get("/", basic(TOKEN))[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "", "10.0.0.10", "[::]", "localhost", "node.internal"])
def test_outside_loopback_a_token_is_needed(host: str) -> None:
    """Refused at the start, with the other problems of the settings and by the port itself; a name may resolve to anything."""
    with pytest.raises(SettingsError) as refused:
        load({"VPC_IPAMD_PAGE_ADDRESS": f"{host}:61676", "WARM_IP_TARGET": "-1"})
    wrong = "VPC_IPAMD_PAGE_TOKEN_FILE" if host != "node.internal" else "must be host:port whose host is empty or an IP address"
    assert wrong in refused.value.details
    assert "WARM_IP_TARGET" in refused.value.details
    with pytest.raises(SettingsError):
        serve(f"{host}:0", token_file=None, state=lambda: b"", refused=lambda _: None)


def test_with_a_token_it_may_listen_everywhere(node: FakeNode, token_file: Path) -> None:
    """And then asks for it."""
    settings = load({"VPC_IPAMD_PAGE_ADDRESS": "0.0.0.0:61676", "VPC_IPAMD_PAGE_TOKEN_FILE": str(token_file)})
    assert settings.daemon.page_token_file == str(token_file)
    for address in ("0.0.0.0:0", ":0"):
        with shown(node, address, token_file=token_file) as page:
            assert page.get("/")[0] == 401
            assert page.get("/", basic(TOKEN))[0] == 200


@pytest.mark.parametrize("text", ["", "short", "a b" * 20, "x" * 5000, "ü" * 30])
def test_a_bad_token_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    """Too short to be secret, too long for a request, or what a header cannot carry."""
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(SettingsError, match="VPC_IPAMD_PAGE_TOKEN_FILE"):
        serve("127.0.0.1:0", token_file=path, state=lambda: b"", refused=lambda _: None)


def test_a_fifo_is_no_token_file(tmp_path: Path) -> None:
    """It would hold up the start until somebody writes into it."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SettingsError, match="it is no file"):
        serve("127.0.0.1:0", token_file=tmp_path / "fifo", state=lambda: b"", refused=lambda _: None)


def test_a_missing_token_file_is_refused_at_the_start(tmp_path: Path) -> None:
    """With the path and the reason."""
    with pytest.raises(SettingsError, match="No such file"):
        serve("127.0.0.1:0", token_file=tmp_path / "none", state=lambda: b"", refused=lambda _: None)


@pytest.mark.parametrize("address", ["61676", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_a_malformed_address_is_refused(address: str) -> None:
    """With what is expected."""
    with pytest.raises(SettingsError):
        serve(address, token_file=None, state=lambda: b"", refused=lambda _: None)


def test_it_is_off_by_default() -> None:
    """No port, no thread."""
    assert load({}).daemon.page_address == "off"
    before = threading.active_count()
    assert serve("off", token_file=None, state=lambda: b"", refused=lambda _: None) is None
    assert threading.active_count() == before


def test_one_source_holds_few_connections(page: Shown) -> None:
    """The bounds of the metrics port: the oldest connection of a source makes room, one thread serves all, others are answered."""
    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", page.port.port), timeout=PATIENCE_S) for _ in range(SOURCE_MAX + 4)]
    wait_until(lambda: page.refused.count("source") >= 4, what="the oldest are closed")
    assert page.get("/state.json")[0] == 200
    assert threading.active_count() == before
    for sock in held:
        sock.close()


def test_a_long_request_is_closed(page: Shown) -> None:
    """A header without end costs 8 KiB and no answer."""
    with socket.create_connection(("127.0.0.1", page.port.port), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000)
        with suppress(ConnectionResetError):
            assert sock.recv(100) == b""
    wait_until(lambda: page.refused.count("request") == 1, what="counted")


def test_requests_share_a_rendering(page: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look, the state is made once a second."""
    monkeypatch.setattr(page_port, "STATE_AGE_S", 3600.0)
    made: list[int] = []
    state = page.port.answers.state
    page.port.answers.state = lambda: (made.append(1), state())[1]
    for _ in range(5):
        assert page.get("/state.json")[0] == 200
    assert len(made) <= 1


def test_a_broken_disk_is_told_and_not_shown(
    page: Shown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The ledger cannot be read: 500 without the cause for whoever asks, one line in the log, and the next request may succeed."""
    monkeypatch.setattr(page_port, "STATE_AGE_S", 0.0)

    def broken(*, limit: int) -> None:
        raise DatastoreError("disk I/O error", details="/run/secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(page.node.datastore, "latest_history", broken)
        for _ in range(3):
            status, _, body = page.get("/state.json")
            assert status == 500
            assert b"secret" not in body
    assert len([one for one in caplog.records if "the page cannot be told" in one.message]) == 1
    assert page.get("/state.json")[0] == 200


def test_a_long_history_and_many_sandboxes_are_cut(page: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are shown; how many there are is said."""
    monkeypatch.setattr("ipamd.page.state.ATTACHMENTS_MAX", 3)
    monkeypatch.setattr(page_port, "STATE_AGE_S", 0.0)
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


def test_the_daemon_imports_nothing_of_it_while_it_is_off() -> None:
    """Memory is for pods: the page's modules are imported by the one function that serves it."""
    source = Path(daemon.__file__).read_text()
    assert re.findall(r"^( *)from ipamd\.page", source, re.M) == ["    ", "    "]


def test_messages_that_the_documentation_quotes_are_said() -> None:
    """What docs/page.md quotes is what the code says."""
    text = (ROOT / "docs" / "page.md").read_text()
    code = " ".join(
        path.read_text() for path in (*(ROOT / "ipamd" / "page").glob("*.py"), ROOT / "ipamd" / "settings" / "loading.py")
    )
    rows = re.findall(r"^\| `([A-Zc][^`]+)` \|", text, re.M)
    assert len(rows) == 4
    for part in ("outside loopback it needs VPC_IPAMD_PAGE_TOKEN_FILE", "it must hold a token of", "cannot serve the page on"):
        assert part in code
        assert any(part in row for row in rows)
