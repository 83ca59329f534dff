"""The first socket that answers CRI is used, and no other after it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ipamd.model.errors import RuntimeUnreachableError
from ipamd.model.failures import FailureCode
from ipamd.runtime.cri import CriRuntime
from ipamd.runtime.cri_socket import USUAL_SOCKETS
from tests.contract.runtime.server import FakeCri
from tests.errors import failed


@pytest.fixture
def candidates(tmp_path: Path) -> tuple[str, ...]:
    """Three usual paths, nothing at any of them."""
    return tuple(str(tmp_path / f"{name}.sock") for name in ("containerd", "crio", "dockerd"))


@pytest.fixture
def runtime(candidates: tuple[str, ...]) -> Iterator[CriRuntime]:
    """An adapter that has to look for its socket."""
    with closing(CriRuntime(socket="", candidates=candidates)) as made:
        yield made


def test_the_usual_sockets_are_those_of_the_three_runtimes() -> None:
    """containerd, CRI-O, cri-dockerd, in the order of how usual they are on EKS."""
    assert USUAL_SOCKETS[:3] == ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_socket_that_answers_is_taken(candidates: tuple[str, ...], runtime: CriRuntime, number: int) -> None:
    """Whichever it is."""
    with FakeCri(candidates[number]):
        assert runtime.info().socket == candidates[number]


def test_a_socket_that_a_removed_runtime_left_behind_is_passed_by(candidates: tuple[str, ...], runtime: CriRuntime) -> None:
    """The file is there, nobody listens."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(candidates[0])
    with FakeCri(candidates[1]):
        assert runtime.info().socket == candidates[1]


def test_a_containerd_that_serves_no_cri_is_passed_by(candidates: tuple[str, ...], runtime: CriRuntime) -> None:
    """Docker's containerd has its CRI plugin disabled; the kubelet talks to cri-dockerd there."""
    with FakeCri(candidates[0], serves_cri=False), FakeCri(candidates[2]):
        assert runtime.info().socket == candidates[2]


def test_a_runtime_that_was_found_is_not_swapped_for_another(candidates: tuple[str, ...], runtime: CriRuntime) -> None:
    """While it restarts, a list of the other runtime, in which none of our sandboxes is, must not be taken for its own (I11)."""
    with FakeCri(candidates[0]) as first, FakeCri(candidates[1]):
        first.run("a")
        assert len(runtime.sandboxes()) == 1
        first.close()
        Path(candidates[0]).unlink(missing_ok=True)
        for _ in range(3):
            with pytest.raises(RuntimeUnreachableError):
                runtime.sandboxes()


def test_nothing_anywhere_is_told_path_by_path(candidates: tuple[str, ...], runtime: CriRuntime, tmp_path: Path) -> None:
    """What was tried, what stands there, and what to do; and a runtime that comes later is found."""
    Path(candidates[1]).write_text("")
    with FakeCri(candidates[2], serves_cri=False), pytest.raises(RuntimeUnreachableError) as caught:
        runtime.info()
    sentence = str(caught.value)
    assert f"{candidates[0]}: No such file or directory" in sentence
    assert f"{candidates[1]}: not a socket" in sentence
    assert f"{candidates[2]}: UNIMPLEMENTED" in sentence
    assert "set VPC_IPAMD_CRI_SOCKET" in sentence
    with FakeCri(candidates[0]):
        assert runtime.info().socket == candidates[0]


@pytest.mark.parametrize("prefix", ["", "unix://"])
def test_a_configured_socket_is_the_only_one(candidates: tuple[str, ...], prefix: str) -> None:
    """VPC_IPAMD_CRI_SOCKET is believed, with and without a scheme; the usual paths are not looked at."""
    with FakeCri(candidates[0]), closing(CriRuntime(socket=prefix + candidates[1], candidates=candidates)) as runtime:
        with pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.NO_RUNTIME_SOCKET)):
            runtime.info()
        with FakeCri(candidates[1]):
            assert runtime.info().socket == candidates[1]


def test_a_configured_socket_without_cri_says_so(candidates: tuple[str, ...]) -> None:
    """UNIMPLEMENTED of a list means another thing than UNIMPLEMENTED of the stream."""
    with FakeCri(candidates[0], serves_cri=False), closing(CriRuntime(socket=candidates[0])) as runtime:
        with pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.NO_CRI)) as caught:
            runtime.sandboxes()
        assert type(caught.value) is RuntimeUnreachableError
