"""Call the plugin as kubelet and a runtime do while a node lives: STATUS every 5 s, and a new sandbox every 2 s.

Each call runs the plugin once as a process in the node. A failed call is recorded and not repeated, because on a real node it makes
the node NotReady, or makes a pod wait for kubelet's next try. Every sandbox has a thread of its own, so that a slow call delays no
other. `KubeletOnCri` calls a real runtime instead, which calls the plugin.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from lab.node.errors import SandboxError
from lab.node.node import Node
from lab.node.plugin import PLUGIN_PATH

STATUS_S = 5.0
"""Source: kubernetes pkg/kubelet/kubelet.go, the period of updateRuntimeUp."""

SANDBOX_S = 2.0
CALL_TIMEOUT_S = 70.0
CONFIG = json.dumps({"cniVersion": "1.1.0", "name": "vpc-ipamd", "type": "vpc-cni"}).encode()


@dataclass(frozen=True)
class Call:
    """One call. `began_monotonic_s`: when it began. `seconds`: its duration. `output`: standard output, or the runtime's problem."""

    verb: str
    began_monotonic_s: float
    seconds: float
    is_ok: bool
    output: str


class KubeletLike:
    """Makes calls while its context is entered. The exit returns when every call has ended."""

    def __init__(
        self, node: Node, *, plugin: str = PLUGIN_PATH, status_s: float = STATUS_S, sandbox_s: float = SANDBOX_S
    ) -> None:
        """`status_s`, `sandbox_s`: pause between two calls of STATUS, and between two sandboxes."""
        self._periods_s = status_s, sandbox_s
        self.calls: list[Call] = []
        self._node = node
        self._plugin = plugin
        self._ended = threading.Event()
        self._adding = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._count = 0

    def __enter__(self) -> KubeletLike:
        self._start(lambda: self._repeat(self._ask_status, self._periods_s[0]))
        self._start(lambda: self._repeat(lambda: self._start(self._live), self._periods_s[1]))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:  # the first two threads add all others, so the list stops growing when those two have ended
            thread.join(CALL_TIMEOUT_S)

    def of(self, verb: str) -> list[Call]:
        """Return the calls of one verb that have ended."""
        return [call for call in list(self.calls) if call.verb == verb]

    def _start(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _repeat(self, body: Callable[[], None], period_s: float) -> None:
        while not self._ended.wait(period_s):
            body()

    def _ask_status(self) -> None:
        self._call("STATUS", {})

    def _live(self) -> None:
        """Run one sandbox: make its namespace, call ADD and DEL, and remove the namespace."""
        name = self._next_name()
        netns = self._node.make_netns(name)
        sandbox = {"CNI_CONTAINERID": name, "CNI_NETNS": netns, "CNI_IFNAME": "eth0"}
        try:
            self._call("ADD", sandbox)
            self._call("DEL", sandbox)
        finally:
            self._node.remove_netns(name)

    def _next_name(self) -> str:
        with self._adding:
            self._count += 1
            return f"roll-{self._count}"

    def _call(self, verb: str, variables: dict[str, str]) -> None:
        began = time.monotonic()
        done = self._node.run(
            [self._plugin],
            env={"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin", **variables},
            stdin_bytes=CONFIG,
            timeout_s=CALL_TIMEOUT_S,
            check=False,
        )
        self.calls.append(Call(verb, began, time.monotonic() - began, done.returncode == 0, done.stdout.strip()))


class KubeletOnCri(KubeletLike):
    """Makes the calls through a node's runtime over CRI: it reads the condition NetworkReady, and runs whole sandboxes.

    The runtime's Status is recorded as STATUS, RunPodSandbox as ADD, and StopPodSandbox with RemovePodSandbox as DEL.
    """

    def _ask_status(self) -> None:
        self._record("STATUS", lambda: self._node.cri.network_problem(timeout_s=CALL_TIMEOUT_S))

    def _live(self) -> None:
        name, sandbox_id = self._next_name(), ""

        def run() -> str:
            nonlocal sandbox_id
            sandbox_id = self._node.cri.run_sandbox(name)
            return ""

        def end() -> str:
            self._node.cri.stop(sandbox_id, timeout_s=CALL_TIMEOUT_S)
            self._node.cri.remove(sandbox_id, timeout_s=CALL_TIMEOUT_S)
            return ""

        self._record("ADD", run)
        if sandbox_id:
            self._record("DEL", end)

    def _record(self, verb: str, ask: Callable[[], str]) -> None:
        """Make and record a call. It counts as failed if `ask` returns a text other than "", or raises SandboxError."""
        began = time.monotonic()
        try:
            problem = ask()
        except SandboxError as error:
            problem = str(error)
        self.calls.append(Call(verb, began, time.monotonic() - began, problem == "", problem))
