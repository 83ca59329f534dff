"""One place makes the daemon's gRPC servers, so that no socket lacks a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.rpc.server import SOCKET_NAME
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.stories.in_process import listening

IPAMD = Path(__file__).parents[3] / "ipamd"


def test_a_server_is_made_in_one_place() -> None:
    """I16: a second call of `grpc.server` had none of the bounds of the first."""
    made = [str(path.relative_to(IPAMD)) for path in sorted(IPAMD.rglob("*.py")) if "grpc.server(" in path.read_text()]
    assert made == ["rpc/unix_server.py"]


def test_a_dead_socket_is_replaced_and_ours_is_removed_at_the_end(tmp_path: Path) -> None:
    """A daemon that was killed leaves its socket behind, and maybe the directory that it is made in."""
    node, path = FakeNode(tmp_path), tmp_path / SOCKET_NAME
    with listening(node):
        path.rename(tmp_path / "kept")
    (tmp_path / "kept").rename(path)
    (tmp_path / ".ipamd").mkdir()
    with listening(node):
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / ".ipamd").exists()
    assert not path.exists()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    """Somebody's file at our place is not ours to remove."""
    (tmp_path / SOCKET_NAME).write_text("somebody's")
    with pytest.raises(SettingsError, check=failed(FailureCode.NO_SOCKET_FILE)), listening(FakeNode(tmp_path)):
        pytest.fail("it listens")
    assert (tmp_path / SOCKET_NAME).read_text() == "somebody's"
