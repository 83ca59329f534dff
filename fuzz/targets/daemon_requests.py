"""Requests to the daemon: random and damaged envelopes through the real gRPC server, and what they leave behind."""

from __future__ import annotations

from random import Random

import grpc

from fuzz import json_text
from fuzz.daemon_node import EXEC, NAMESPACES, DaemonNode
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.pb import cni_pb2, introspection_pb2

UNEXPECTED = "vpc-ipamd met an unexpected error"
CLEAN_REFUSALS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED,
                  grpc.StatusCode.UNIMPLEMENTED)  # fmt: skip
INTROSPECTION = "/vpc_ipamd.v1.Introspection/"
RPCS = ("GetStatus", "ListEnis", "ListAttachments", "GetHistory", "Audit", "Explain", "Path", "Nothing")
IDS = ("a", "x" * 200, "x" * 201, "", "-", "a/b", "\x1b[2J", "\u00e4", "10.0.0.20", "eni-2", "%s", "\ufeff", "a\n")
IFNAMES = ("eth0", "eth0", "eth0", "eth1", "", ".", "e%d", "e" * 16, "a b", "\x7f", "\u00e4", "lo", "\u2028")
NETNS = (*NAMESPACES, "/run/netns/none", "", "relative", "/" + "n" * 5000, "/a\x00b", "/\x1b[1m")
ARGS = (
    "",
    "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod;K8S_POD_UID=uid",
    ";;",
    "=",
    "K8S_POD_NAME=" + "p" * 3000,
    "K8S_POD_NAME=\x1b[1m\n",
)


class DaemonRequests(Target):
    """A case: `requests`, a list of (method, bytes), made one after the other."""

    memory_bytes = 128 << 20

    def __init__(self, daemon: DaemonNode) -> None:
        self._daemon = daemon

    def generate(self, random: Random) -> Case:
        name = f"s{random.randrange(10_000_000)}" if random.random() < 0.9 else random.choice(IDS)
        requests = [self._request(random, name) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        return {"requests": [[method, data] for method, data in requests]}

    def run(self, case: Case) -> None:
        try:
            for method, data in case["requests"]:
                self._one(method, blob(data))
        finally:
            self._daemon.clean_up()

    def check(self) -> None:
        self._daemon.check()

    def close(self) -> None:
        self._daemon.close()

    def _request(self, random: Random, name: str) -> tuple[str, bytes | list[tuple[bytes, int]]]:
        kind = random.random()
        if kind < 0.08:
            return INTROSPECTION + random.choice(RPCS), introspection(random)
        if kind < 0.1:
            return EXEC, noise(random, 500)
        if kind < 0.103:
            return EXEC, [
                (b"\x3a\x80\x80\x40" if random.random() < 0.5 else b"\x0a\x01A", 1),
                (b"{", random.choice((7 << 18, 3 << 20))),
            ]
        data = envelope(random, name)
        return EXEC, mutated(random, data) if kind < 0.25 else data

    def _one(self, method: str, data: bytes) -> None:
        before = set(self._daemon.node.datastore.attachments())
        answer = self._daemon.ask(method, data)
        refusal = self._judged(method, data, answer)
        gained = set(self._daemon.node.datastore.attachments()) - before
        if refusal and gained:
            raise Violation("committed", f"{method} was refused ({refusal}), but {gained}")

    def _judged(self, method: str, data: bytes, answer: bytes | grpc.StatusCode) -> str:
        """Return why it was refused, "" if it was not. Raises: Violation."""
        if isinstance(answer, grpc.StatusCode):
            if answer not in CLEAN_REFUSALS or (answer is grpc.StatusCode.INTERNAL and _is_readable(method, data)):
                raise Violation("refusal", f"{method} ended with {answer}")
            return str(answer)
        if method != EXEC:
            return ""
        reply, request = cni_pb2.ExecReply.FromString(answer), cni_pb2.ExecRequest.FromString(data)
        if reply.HasField("error"):
            _judge_error(reply.error)
            return f"{request.verb}: {reply.error.code} {reply.error.message}"
        if reply.result:
            _judge_result(request, reply.result)
        return ""


def envelope(random: Random, name: str) -> bytes:
    """Make a request as plugins do, with unusual values."""
    verb = random.choice(("ADD", "ADD", "ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "add", "\x1b[1m", "{"))
    unusual = random.random() < 0.25
    made = cni_pb2.ExecRequest(
        verb=verb,
        container_id=random.choice(IDS) if unusual and random.random() < 0.3 else name,
        ifname=random.choice(IFNAMES) if unusual else "eth0",
        netns=random.choice(NETNS) if unusual else random.choice(NAMESPACES),
        args=random.choice(ARGS),
        config=json_text.configuration(random),
        protocol_min=random.choice((0, 1, 2, 1 << 31)) if unusual else 1,
        protocol_max=random.choice((0, 1, 2, (1 << 32) - 1)) if unusual else 1,
        plugin_version=random.choice(("0.1.0", "", "\x1b[1m", "v" * 3000)) if unusual else "0.1.0",
    )
    return made.SerializeToString()


def introspection(random: Random) -> bytes:
    """Make a request of `ipamctl`, sometimes none."""
    if random.random() < 0.2:
        return noise(random, 60)
    subject = random.choice((*IDS, "x" * 100_000, "0", "::1", "10.0.0.300", "a/b/c", "/"))
    times = {name: random.choice(("", "", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "2h")) for name in ("since", "at")}
    good = random.choice((
        introspection_pb2.GetHistoryRequest(subject=subject, limit=random.choice((0, 1, 5, 1 << 31)), **times),
        introspection_pb2.ExplainRequest(subject=subject, since=times["since"], at=times["at"], find=random.random() < 0.5),
        introspection_pb2.AuditRequest(skip_ec2=random.random() < 0.5),
    )).SerializeToString()  # fmt: skip
    return mutated(random, good) if random.random() < 0.3 else good


def _is_readable(method: str, data: bytes) -> bool:
    """Tell whether a request's bytes are a message of the method: then a refusal as INTERNAL is a defect."""
    kind = cni_pb2.ExecRequest if method == EXEC else getattr(introspection_pb2, f"{method.rpartition('/')[2]}Request", None)
    try:
        return kind is not None and kind.FromString(data) is not None
    except Exception:  # noqa: BLE001  # the parser's own error type differs between implementations
        return False


def _judge_error(error: cni_pb2.CniError) -> None:
    if error.message == UNEXPECTED or not error.code:
        raise Violation(
            "traceback", f"{error.code} {error.message}: {error.details}", signature=f"unexpected {error.details[:30]}"
        )


def _judge_result(request: cni_pb2.ExecRequest, result: bytes) -> None:
    try:
        document = json_text.strict(result)
    except ValueError as error:
        raise Violation("invalid document", f"{error} in {result[:300]!r}") from error
    if request.verb != "ADD" or document.get("cniVersion") not in json_text.VERSIONS or not document.get("ips"):
        raise Violation("wrong document", f"{request.verb} gave {result[:300]!r}")


def make() -> Target:
    """Make the target."""
    return DaemonRequests(DaemonNode())
