"""A socket that somebody removes, replaces or changes while the daemon runs is served anew, or a condition says what is there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.rpc.unix_server import UnixServer
from tests.contract.daemon.test_hostile_peers import Served, ServedBackend
from tests.errors import failed
from tests.patience import PATIENCE_S
from tests.rig import RUN_DIR, rig, wait_until


@pytest.fixture(params=[Served, ServedBackend], ids=["ours", "cni-backend"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """Each socket of the daemon, over fakes."""
    made: Served = request.param(tmp_path)
    yield made
    made.close()


def _remove(path: Path) -> None:
    path.unlink()


def _replace_by_a_dead_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def _rename(path: Path) -> None:
    path.rename(path.with_name("moved"))


@pytest.mark.parametrize("do", [_remove, _replace_by_a_dead_socket, _rename])
def test_it_is_served_anew(served: Served, do: Callable[[Path], None]) -> None:
    """At its place, root's alone; what keeps it says so once."""
    assert served.server.keep() == ""
    do(Path(served.path))
    assert not served.answers()
    assert "removed" in (said := served.server.keep()) or "replaced" in said
    assert served.answers()
    assert Path(served.path).stat().st_mode & 0o7777 == 0o600
    assert served.server.keep() == ""


def test_it_is_served_anew_where_its_directory_was_removed(tmp_path: Path) -> None:
    """That of the other's socket; where ours is there is the datastore too, without which the process ends."""
    (tmp_path / "run").mkdir()
    made = ServedBackend(tmp_path / "run")
    try:
        made.server.path = tmp_path / "theirs" / "s"
        made.server.keep()
        shutil.rmtree(tmp_path / "theirs")
        assert made.server.keep() == "it was removed"
        made.path = str(made.server.path)
        assert made.answers()
    finally:
        made.close()


IN_THE_WAY: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/null"),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "fifo": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_is_no_socket_is_left_alone_and_named(served: Served, kind: str) -> None:
    """Until it is gone."""
    path = Path(served.path)
    path.unlink()
    IN_THE_WAY[kind](path)
    with pytest.raises(SettingsError, check=failed(FailureCode.NO_SOCKET_FILE)):
        served.server.keep()
    path.rmdir() if kind == "directory" else path.unlink()
    served.server.keep()
    assert served.answers()


def test_a_place_at_which_somebody_listens_is_not_taken(served: Served) -> None:
    """Until it does no more: it may be the daemon of amazon-vpc-cni-k8s."""
    Path(served.path).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(served.path)
        other.listen()
        with pytest.raises(SettingsError, check=failed(FailureCode.SOCKET_TAKEN)):
            served.server.keep()
    served.server.keep()
    assert served.answers()


@pytest.mark.parametrize(("mode", "owner"), [(0o666, 0), (0o000, 0), (0o600, 1000), (0o4711, 1000)])
def test_its_mode_and_its_owner_are_put_back(served: Served, mode: int, owner: int) -> None:
    """The plugin speaks to root's socket only."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(served.path, owner, -1)
    Path(served.path).chmod(mode)
    assert f"user {owner}'s with mode {mode:04o}" in served.server.keep()
    status = Path(served.path).stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o600)
    assert served.answers()


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o755, 1000)])
def test_so_are_those_of_the_run_directory(tmp_path: Path, mode: int, owner: int) -> None:
    """The plugin sends nothing into one that others may write."""
    if os.geteuid() != 0:
        pytest.skip("only root gives directories away")
    tmp_path.chmod(0o700)
    made = Served(tmp_path)
    try:
        assert made.server.keep() == ""
        os.chown(tmp_path, owner, -1)
        tmp_path.chmod(mode)
        assert f"user {owner}'s with mode {mode:04o}" in made.server.keep()
        assert (tmp_path.stat().st_uid, tmp_path.stat().st_mode & 0o7777) == (0, 0o700)
        moved = tmp_path.rename(tmp_path.with_name("moved"))
        moved.chmod(0o755)
        tmp_path.symlink_to(moved)
        with pytest.raises(SettingsError, check=failed(FailureCode.DIRECTORY_IS_LINK)):
            made.server.keep()
        assert moved.stat().st_mode & 0o7777 == 0o755, "whose it is, is not known"
        tmp_path.unlink()
        moved.rename(tmp_path)
    finally:
        made.close()


def test_what_was_asked_before_is_answered(tmp_path: Path) -> None:
    """An ADD that is at work while its socket goes."""
    asked, go_on = threading.Event(), threading.Event()

    def answer(request: bytes, _: grpc.ServicerContext) -> bytes:
        asked.set()
        assert go_on.wait(PATIENCE_S)
        return request

    handler = grpc.method_handlers_generic_handler("s", {"m": grpc.unary_unary_rpc_method_handler(answer, bytes, bytes)})
    bounds = {"max_rpcs": 4, "max_connections": 4, "max_request_bytes": 100}
    server = UnixServer(tmp_path / "s", advice="", add=lambda made: made.add_generic_rpc_handlers((handler,)), **bounds)  # type: ignore[arg-type]
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path / 's'}") as channel:
        reply = channel.unary_unary("/s/m").future(b"before", timeout=PATIENCE_S)
        assert asked.wait(PATIENCE_S)
        (tmp_path / "s").unlink()
        assert server.keep() == "it was removed"
        go_on.set()
        assert reply.result() == b"before"
    with grpc.insecure_channel(f"unix:{tmp_path / 's'}") as channel:
        assert channel.unary_unary("/s/m")(b"after", timeout=PATIENCE_S) == b"after"
    server.stop(0)
    assert server.keep() == ""
    assert not (tmp_path / "s").exists()


def test_who_removes_it_again_and_again_costs_no_threads_and_no_descriptors(served: Served) -> None:
    """Every server before the last is let go of."""
    assert served.answers()

    def held() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    def once() -> None:
        Path(served.path).unlink()
        served.server.keep()
        assert served.answers()

    once()
    threads, descriptors = held()
    for _ in range(20):
        once()
    wait_until(lambda: held()[0] <= threads + 2 and held()[1] <= descriptors + 4, what="what the former ones held")


@pytest.mark.privileged
def test_a_daemon_whose_socket_is_removed_is_reached_again() -> None:
    """Within a turn of its maintenance, 5 s; what stands in the way is a condition in the metrics and in the log."""
    with rig(env={"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}) as made:
        path = Path(made.node.root + RUN_DIR) / "ipamd.sock"
        assert made.add("before").ok
        path.unlink()
        assert made.add("meanwhile").ok, "the plugin waits for it"
        status = made.status()
        assert status is not None
        assert "was repaired: it was removed" in status["last_error"]["message"]
        assert status["last_error"]["resolved_at"]
        assert status["degraded"] == ["CRI is off: nothing is reaped"]
        path.unlink()
        path.touch()

        def page() -> str:
            _, text = made.page("http://127.0.0.1:61678/metrics")
            return text

        wait_until(lambda: 'ipamd_conditions{subject="socket"} 1.0' in page(), what="the metric")
        assert "is not a socket" in made.log_tail()
        assert made.delete("before").code == 191, "the plugin says so, too"
        path.unlink()
        wait_until(lambda: 'ipamd_conditions{subject="socket"} 1.0' not in page(), what="its end")
        assert made.delete("before").ok
        assert made.delete("meanwhile").ok
        made.assert_sound(expected=0)
        assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0
        assert not path.exists()
