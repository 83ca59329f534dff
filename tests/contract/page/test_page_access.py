"""Who may read the page: names of the machine, tokens, and that it listens on loopback alone."""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.page_access import TOKEN_MIN
from ipamd.ipamctl.verb import EXIT_REFUSED, EXIT_USAGE
from tests.fakes.node import FakeNode
from tests.page import Shown, shown
from tests.patience import PATIENCE_S

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token, as a Secret is mounted."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


def basic(token: str) -> dict[str, str]:
    """What a browser sends after it has asked a person."""
    return {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


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


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Start `ipamctl page`, which must refuse; its status and what it said."""
    status = ipamctl.main(["page", "--port", "0", *words])
    out, error = capsys.readouterr()
    assert out == ""
    return status, error


@pytest.mark.parametrize("text", ["", "short", "a b" * 20, "x" * 5000, "ü" * 30])
def test_a_bad_token_is_refused_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Too short to be secret, too long for a request, or what a header cannot carry."""
    path = tmp_path / "bad"
    path.write_text(text)
    status, error = refused(capsys, "--token-file", str(path))
    assert (status, f"--token-file {path}: " in error) == (EXIT_USAGE, True)


def test_a_token_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A FIFO, which would hold up the start until somebody writes into it, and a file that is not there."""
    os.mkfifo(tmp_path / "fifo")
    assert "it is no file" in refused(capsys, "--token-file", str(tmp_path / "fifo"))[1]
    assert "No such file" in refused(capsys, "--token-file", str(tmp_path / "none"))[1]


def test_a_port_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        status, error = refused(capsys, "--port", str(holder.getsockname()[1]))
    assert status == EXIT_REFUSED
    assert "name another with --port" in error


def test_it_listens_on_loopback_alone(page: Shown) -> None:
    """Nobody reaches it from outside the node, with a token or without; there is no option for it."""
    assert page.port._listener.getsockname()[0] == "127.0.0.1"
    for words in (["--port", "0.0.0.0:1"], ["--port", "-1"], ["--port", "65536"], ["--address", "0.0.0.0"]):
        with pytest.raises(SystemExit):
            ipamctl.main(["page", *words])
