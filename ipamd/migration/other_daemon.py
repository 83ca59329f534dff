"""Hold ADD while amazon-vpc-cni-k8s may give addresses of this node too, and name what both gave (I1, I20).

Its daemon restarts (a crash, an upgrade, an OOM kill), so one refused connection is no proof that it has gone: once it was seen in
this boot it must have been away for a minute. On a node where it left no sign nothing is held. Its file says what it gave: while it
is another than the one that we took over or wrote, it is compared with our rows at each look (docs/adr/0043).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from ipamd.core.context import ServiceContext
from ipamd.core.health import Phase
from ipamd.model.aws_node import GivenTwice, agent_pod, given_twice
from ipamd.model.errors import IpamError, log_text
from ipamd.model.freeze import FreezeCause
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import first_of
from ipamd.ports import AwsNode

CONDITION = "aws-node"
TWICE = "given twice"

ABSENCE_S = 60.0
"""After the last sign. Ours: kubelet starts a container that ended again within 10 s at first, and its daemon listens some seconds
after its start; while kubelet waits longer than that, its pod's sandbox is a sign."""

NAMED_MAX = 5
REMOVE = "remove its DaemonSet aws-node from this node"

log = logging.getLogger(__name__)


class OtherDaemon:
    """Safe from any thread. Nothing is raised: what cannot be told holds ADD (I11)."""

    def __init__(self, context: ServiceContext, *, aws_node: AwsNode | None) -> None:
        """`aws_node` None: nothing is known of the other software, and nothing is held."""
        self._context = context
        self._health = context.health
        self._aws_node = aws_node
        self._lock = threading.Lock()
        self._pod = ""
        self._held_for = ""

    def heed(self, sandboxes: Iterable[Sandbox]) -> None:
        """Take a complete list of the runtime: whether a pod of its daemon is there."""
        pod = agent_pod(sandboxes)
        if pod != self._pod:
            self._pod = pod
            self.look()

    def look(self) -> str:
        """Hold ADD, or end that. Returns: why its daemon may give addresses now, "" if it does not."""
        with self._lock:
            if self._aws_node is None or self._aws_node.is_exporting:
                return ""
            try:
                why = self._why(self._aws_node)
                # What it gave while we served is taken over by the next start: until then our rows call some of it free.
                is_overtaken = self._health.phase is Phase.SERVING and self._aws_node.has_run_since()
            except IpamError as error:
                why, is_overtaken = f"nobody can tell whether amazon-vpc-cni-k8s is away: {log_text(error)}", False
            self._hold(why or ("amazon-vpc-cni-k8s gave addresses while we served" if is_overtaken else ""))
            self._name_given_twice()
            return why

    def is_overtaken(self) -> bool:
        """Whether it wrote its file after ours took it over or wrote it. Raises: ForeignStateError."""
        return self._aws_node is not None and self._aws_node.has_run_since()

    def given_twice(self) -> tuple[GivenTwice, ...]:
        """What both gave, by its file and our rows as they are now. Nothing is raised: a file that cannot be read names nothing."""
        try:
            if self._aws_node is None or self._aws_node.is_exporting or not self._aws_node.has_run_since():
                return ()
            return given_twice(self._context.datastore.attachments(), self._aws_node.allocations())
        except IpamError as error:
            self._health.record_error(TWICE, error)
            return ()

    def _why(self, aws_node: AwsNode) -> str:
        sign = aws_node.last_sign(pod=self._pod)
        if sign is None or sign.age_s >= ABSENCE_S:
            return ""
        seen = f", {sign.age_s:.0f} s ago" if sign.age_s else ""
        return f"amazon-vpc-cni-k8s may give addresses of this node: {sign.what}{seen}"

    def _hold(self, why: str) -> None:
        sentence = f"{why}; {REMOVE}; ADD is served {ABSENCE_S:.0f} s after its last sign; two must not share a node (I20)"
        if why:
            self._health.hold_adds(CONDITION, sentence)
            self._context.freeze.set(FreezeCause.AWS_NODE, "amazon-vpc-cni-k8s may use what we hold")
        elif self._held_for:
            self._health.serve_adds(CONDITION)
            self._context.freeze.clear(FreezeCause.AWS_NODE)
        self._health.report(CONDITION, why and f"{CONDITION}: {sentence}")
        self._held_for = why

    def _name_given_twice(self) -> None:
        found = [str(one) for one in self.given_twice()]
        sentence = f"{TWICE}: {first_of(found, NAMED_MAX)}; delete one pod of each pair, and {REMOVE}"
        self._health.report(TWICE, sentence if found else "")
