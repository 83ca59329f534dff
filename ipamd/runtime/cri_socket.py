"""Find the socket of the container runtime, and convert the failures of its calls.

An existing socket file does not show that a runtime serves CRI: a removed runtime leaves its file, and Docker's containerd serves no
CRI. So the first candidate that answers CRI's Version is used. The process then keeps this runtime: in the list of another runtime
every sandbox would seem to be gone (I11).
"""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import grpc

from ipamd.grpc_client import MAX_ANSWER_BYTES, Peer, status
from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.failures import FailureCode, failure
from ipamd.pb import cri_pb2, cri_pb2_grpc

USUAL_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/var/run/dockershim.sock",
)
"""Probed in this order if VPC_IPAMD_CRI_SOCKET is not set.

Source: https://kubernetes.io/docs/setup/production-environment/container-runtimes/; dockershim.sock is the old default of kubelet,
and some node images keep it as a link.
"""

PROBE_TIMEOUT_S = 2.0
"""Deadline of CRI's call Version. Ours: a runtime answers it from memory in under a millisecond, so a candidate that has not
answered by then is not serving."""


def choose_socket(configured: str, candidates: tuple[str, ...]) -> str:
    """Find the CRI socket: the configured one, or the first candidate that answers CRI's Version.

    Raises: RuntimeUnreachableError with the problem at each path.
    """
    if configured:
        path = configured.removeprefix("unix://")
        problem = _socket_problem(path)
        if problem:
            raise _no_socket({path: problem})
        return path
    problems: dict[str, str] = {}
    for path in candidates:
        problems[path] = _socket_problem(path) or _probe(path)
        if not problems[path]:
            return path
    raise _no_socket(problems)


def unreachable(error: grpc.RpcError, *, call: str, socket: str) -> RuntimeUnreachableError:
    """Convert a gRPC error into our error: why the call gave no complete answer."""
    code, reason = status(error)
    if code is grpc.StatusCode.UNIMPLEMENTED and call == "GetContainerEvents":
        return failure(EventsUnsupportedError, FailureCode.NO_EVENT_STREAM, socket=socket, call=call)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return failure(RuntimeUnreachableError, FailureCode.NO_CRI, socket=socket, call=call)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        fields = {"socket": socket, "call": call, "limit_mib": MAX_ANSWER_BYTES >> 20, "cause": reason}
        return failure(RuntimeUnreachableError, FailureCode.RUNTIME_ANSWER_TOO_LARGE, **fields)
    return failure(RuntimeUnreachableError, FailureCode.RUNTIME_SILENT, socket=socket, call=call, cause=reason)


def _no_socket(problems: dict[str, str]) -> RuntimeUnreachableError:
    described = "; ".join(f"{path}: {problem}" for path, problem in problems.items())
    return failure(RuntimeUnreachableError, FailureCode.NO_RUNTIME_SOCKET, sockets=", ".join(problems), problems=described)


def _socket_problem(path: str) -> str:
    """Return why a path is not a socket, "" if it is one."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISSOCK(mode):
        return ""
    return "not a socket"


def _probe(path: str) -> str:
    """Return why a socket does not answer CRI's Version, "" if it does."""
    with closing(Peer(path, cri_pb2_grpc.RuntimeServiceStub)) as peer:
        try:
            peer.ask("Version", cri_pb2.VersionRequest(version="v1"), timeout_s=PROBE_TIMEOUT_S)
        except grpc.RpcError as error:
            return status(error)[1]
    return ""
