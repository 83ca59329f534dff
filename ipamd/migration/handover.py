"""When this node changes hands between amazon-vpc-cni-k8s and us: who may give addresses, and whose conflist the runtime finds.

Two daemons that give addresses of the same ENIs give one twice (I1). So a start waits until the other one has been away for a minute,
its file is read only then, and its conflist, which sorts before ours, is renamed only once we are ready (docs/adr/0037). After
`ipamctl export` nothing is given here any more (docs/adr/0038).

ADD is held while amazon-vpc-cni-k8s may give addresses of this node too, and what both gave is named (I1, I20). Its daemon restarts (a
crash, an upgrade, an OOM kill), so one refused connection is no proof that it has gone: once it was seen in this boot it must have
been away for a minute. On a node where it left no sign nothing is held. Its file says what it gave: while it is another than the one
that we took over or wrote, it is compared with our rows at each look (docs/adr/0043).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from ipamd.core.context import Service, ServiceContext
from ipamd.core.health import Health, Phase
from ipamd.migration.backend import CniBackendServer
from ipamd.migration.export import ExportService
from ipamd.model.aws_node import GivenTwice, agent_pod, given_twice
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import IpamError, NotServingError, SettingsError, log_text
from ipamd.model.freeze import FreezeCause
from ipamd.model.kernel import NODE
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import first_of
from ipamd.ports import AwsNode, HostNetwork

LOOK_S = 1.0
"""How often a start looks whether the other daemon has gone. Ours: a connection to a socket of this node."""

RESTART_PAUSE_S = 0.5
"""For the reply to `ipamctl export --undo` to leave before the process ends. Ours."""

CONDITION = "aws-node"
TWICE = "given twice"

ABSENCE_S = 60.0
"""After the last sign. Ours: kubelet starts a container that ended again within 10 s at first, and its daemon listens some seconds
after its start; while kubelet waits longer than that, its pod's sandbox is a sign."""

NAMED_MAX = 5
REMOVE = "remove its DaemonSet aws-node from this node"

log = logging.getLogger(__name__)


class OtherDaemon(Service):
    """Safe from any thread. Nothing is raised: what cannot be told holds ADD (I11)."""

    def __init__(self, context: ServiceContext, *, aws_node: AwsNode) -> None:
        super().__init__(context)
        self._freeze = context.freeze
        self._aws_node = aws_node
        self._lock = threading.Lock()
        self._pod = ""

    def heed(self, sandboxes: Iterable[Sandbox]) -> None:
        """Take a complete list of the runtime: whether a pod of its daemon is there."""
        pod = agent_pod(sandboxes)
        if pod != self._pod:
            self._pod = pod
            self.look()

    def look(self) -> str:
        """Hold ADD, or end that. Returns: why its daemon may give addresses now, "" if it does not."""
        with self._lock:  # a whole look: an older one must not serve what a newer one holds
            if self._aws_node.is_exporting:
                return ""
            why, is_overtaken = "", False
            try:
                sign = self._aws_node.last_sign(pod=self._pod)
                if sign is not None and sign.age_s < ABSENCE_S:
                    seen = f", {sign.age_s:.0f} s ago" if sign.age_s else ""
                    why = f"amazon-vpc-cni-k8s may give addresses of this node: {sign.what}{seen}"
                # What it gave while we served is taken over by the next start: until then our rows call some of it free.
                is_overtaken = self._health.phase is Phase.SERVING and self._aws_node.has_run_since()
            except IpamError as error:
                why = f"nobody can tell whether amazon-vpc-cni-k8s is away: {log_text(error)}"
            self._hold(why or ("amazon-vpc-cni-k8s gave addresses while we served" if is_overtaken else ""))
            both = first_of([str(one) for one in self.given_twice()], NAMED_MAX)
            self._health.report(TWICE, both and f"{TWICE}: {both}; delete one pod of each pair, and {REMOVE}")
            return why

    def given_twice(self) -> tuple[GivenTwice, ...]:
        """What both gave, by its file and our rows as they are now. Nothing is raised: a file that cannot be read names nothing."""
        try:
            if self._aws_node.is_exporting or not self._aws_node.has_run_since():
                return ()
            return given_twice(self._datastore.attachments(), self._aws_node.allocations())
        except IpamError as error:
            self._health.record_error(TWICE, error)
            return ()

    def _hold(self, why: str) -> None:
        sentence = f"{why}; {REMOVE}; ADD is served {ABSENCE_S:.0f} s after its last sign; two must not share a node (I20)"
        if why:
            self._health.hold_adds(CONDITION, sentence)
            self._freeze.set(FreezeCause.AWS_NODE, "amazon-vpc-cni-k8s may use what we hold")
        elif self._health.is_held:  # only from hold to serve: that renews the patience of STATUS
            self._health.serve_adds(CONDITION)
            self._freeze.clear(FreezeCause.AWS_NODE)
        self._health.report(CONDITION, why and f"{CONDITION}: {sentence}")


class Handover:
    """One life of the daemon, as seen from the other software. Called by the start-up thread, and by the conflist's keeper."""

    def __init__(
        self,
        *,
        aws_node: AwsNode,
        is_overtaken: bool,
        export: ExportService,
        other: OtherDaemon,
        backend: CniBackendServer | None,
        hostnet: HostNetwork,
        identity: Callable[[], InstanceIdentity | None],
        health: Health,
        stopped: threading.Event,
        quiesce: Callable[[], None],
        leave_mark: Callable[[], None],
        end: Callable[[str], None],
        left_egress: Callable[[], tuple[Collection[str] | None, bool]],
    ) -> None:
        """`is_overtaken`: its file was written after our rows, which were therefore made anew at this start. `quiesce` ends every
        loop that changes something; `leave_mark` says that this daemon is at work, for STATUS; `end` ends the process, for the next
        one to begin. `left_egress`: see `ImportService`."""
        self._leave_mark = leave_mark
        self._aws_node = aws_node
        self._is_overtaken = is_overtaken
        self._export = export
        self._other = other
        self._health = health
        self._stopped = stopped
        self._end = end
        self._left_egress = left_egress
        self._hostnet = hostnet
        self._identity = identity
        self._is_tidy = False
        self._backend = backend

        def restart(reason: str) -> None:
            timer = threading.Timer(RESTART_PAUSE_S, end, [reason])
            timer.daemon = True
            timer.start()

        self._export.follow(quiesce=quiesce, restart=restart, release=hostnet.release)

    def begin(self) -> bool:
        """Return once the other daemon is away; False if this node is to be its, or this process must not go on.

        Raises: NotServingError if the daemon is stopped.
        """
        if self._aws_node.is_exporting:
            self._export.hold()
            log.warning("this node was exported to amazon-vpc-cni-k8s: DEL is served, ADD is not")
            return False
        while self._other.look():
            self._leave_mark()
            if self._stopped.wait(LOOK_S):
                raise NotServingError("vpc-ipamd is shutting down")
        if self._aws_node.has_run_since() and not self._is_overtaken:
            self._end("amazon-vpc-cni-k8s wrote its file after our rows had been opened: they are made anew")
            return False
        if self._backend is not None:  # a setting asks to listen where the other daemon did; a refusal is a condition
            try:
                self._backend.start()
                log.info("what the daemon of amazon-vpc-cni-k8s is asked is answered socket=%s", self._backend.path)
            except SettingsError as error:
                self._health.report(
                    "cni-backend", f"cni-backend: who asks the other's daemon is not answered: {error}", error=error
                )
        return True

    def finish(self) -> None:
        """Note that what the other had given is taken over. Raises: ForeignStateError, TakeoverError."""
        self._other.look()  # first: what is noted as taken over is no sign any more
        self._aws_node.finish()

    def tidy(self) -> str:
        """Remove the other's chains, once: its daemon is away, and our own table does for every sandbox what they did.

        Returns: what was removed. Raises: WiringError, KernelDumpError.
        """
        identity = self._identity()
        if self._is_tidy or identity is None or self._other.look():
            return ""
        if any(one.subject == NODE and one.is_repaired for one in self._hostnet.differences(identity=identity, enis=())):
            return ""  # our table is not in place yet
        egress, self._is_tidy = self._left_egress()
        removed = self._hostnet.remove_left_chains(egress=egress)
        if removed:
            log.warning("removed what amazon-vpc-cni-k8s had left in nftables chains=%s", removed)
        return removed

    def look(self) -> bool:
        """Look for its daemon while we serve. Returns: whether it is away, and gave nothing.

        If it has gone and gave addresses the process ends: pods have them that our rows call free, and the next start takes those
        over. Raises: ForeignStateError.
        """
        if self._other.look():
            return False
        if not self._aws_node.has_run_since():
            return True
        if not self._aws_node.is_exporting:
            self._end("amazon-vpc-cni-k8s gave addresses while we served: our rows are made anew")
        return False

    def take_conflist(self) -> str:
        """Rename the other's conflist, which a runtime would use instead of ours, while its daemon is away.

        Returns: what was done, "" if there was nothing to do. Raises: TakeoverError, ForeignStateError.
        """
        # An export may begin while the other is looked for: then its conflist is what the runtime is to use.
        if self._aws_node.is_exporting or not self.look() or self._aws_node.is_exporting:
            return ""
        said = self._aws_node.save_conflist()
        if said:
            self._is_tidy = False  # its daemon was here: it made its chains anew
            log.warning("the other's conflist sorts before ours; `ipamctl export` puts it back done=%s", said)
        return said
