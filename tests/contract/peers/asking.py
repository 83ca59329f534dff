"""A process that asks peers again and again as the daemon does: `python -m tests.contract.peers.asking CLIENT SECONDS SOCKET...`.

It is a process of its own, because its memory is measured and its standard error must have lines of the daemon's log only. For each
socket it writes one line of JSON: how often it asked, what the last question ended with, and by how many MiB the process grew so far.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ipamd import logs
from ipamd.grpc_environment import prepare_grpc
from ipamd.model.errors import IpamError, log_text
from ipamd.overdue_calls import CALLS

SHORT_S = 0.4
EVENTS_MAX = 1000
LOOK_S = 0.01
CLIENTS = ("policy agent", "kubelet", "runtime", "events")


def asker(client: str, socket: str) -> Callable[[], object]:
    """What asks once. It raises IpamError, or returns what it learnt."""
    if client == "policy agent":
        from ipamd.model.ids import PodName
        from ipamd.policy.agent import GrpcPolicyAgent

        agent = GrpcPolicyAgent(socket=socket)
        return lambda: agent.enforce(PodName("default", "web-0"), mode="strict", timeout_s=SHORT_S)
    if client == "kubelet":
        from ipamd.model.cni_request import AttachRequest, SandboxNames
        from ipamd.model.ids import parse_key
        from ipamd.sandbox.legs.pod_facts import KubeletFacts

        facts = KubeletFacts(socket=socket)
        names = SandboxNames("default", "web-0", "4f6c0a7e-0000-4000-8000-000000000001")
        request = AttachRequest(parse_key("c" * 64, "eth0"), "/run/netns/x", "vpc-ipamd", "1.0.0", "digest", names)
        return lambda: facts.facts(request, timeout_s=SHORT_S).reason
    from ipamd.runtime import cri, cri_socket

    cri.PROBE_TIMEOUT_S = cri_socket.PROBE_TIMEOUT_S = SHORT_S  # type: ignore[attr-defined]
    runtime = cri.CriRuntime(socket=socket, call_timeout_s=SHORT_S)
    return runtime.sandboxes if client == "runtime" else lambda: list(itertools.islice(runtime.events(), EVENTS_MAX))


def memory_mib() -> float:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


class Growth:
    """By how much this process has grown at most, watched by a thread, which also ends overdue calls as the loop `answers` does."""

    def __init__(self) -> None:
        self._before = memory_mib()
        self.peak_mib = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.peak_mib = max(self.peak_mib, memory_mib() - self._before)
            CALLS.end_overdue()


def ask_for(seconds: float, ask: Callable[[], object]) -> tuple[int, str]:
    """Ask until the time is up, once at least. Returns: how often, and what the last question ended with."""
    until, count, answer = time.monotonic() + seconds, 0, ""
    while not count or time.monotonic() < until:
        count += 1
        try:
            answer = f"answered: {ask()}"
        except IpamError as error:
            answer = log_text(error)
    return count, answer


def main() -> None:
    """Ask each peer."""
    client, seconds, *sockets = sys.argv[1:]
    prepare_grpc()
    logs.set_up("info")
    asker(client, "/nobody")  # what is imported for it is no growth
    growth = Growth()
    try:
        for socket in sockets:
            count, answer = ask_for(float(seconds), asker(client, socket))
            report = {"count": count, "answer": answer, "growth_mib": round(growth.peak_mib, 1)}
            sys.stdout.write(json.dumps(report) + "\n")
    finally:
        growth.close()


if __name__ == "__main__":
    main()
