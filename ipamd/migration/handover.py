"""Hand the node over between amazon-vpc-cni-k8s and our daemon: decide which of them may assign addresses, and whose conflist is used.

Two daemons that assign addresses of the same ENIs may assign one address twice (I1). So a start waits until the daemon of
amazon-vpc-cni-k8s (aws-node) has been away for a minute, and reads its file only then. aws-node's conflist, which sorts before ours,
is renamed only when our daemon is ready (docs/adr/0037). After `ipamctl export` our daemon assigns no address (docs/adr/0038).

ADD is blocked while aws-node may assign addresses of this node too, and addresses that both daemons assigned are reported (I1, I20).
aws-node may be restarting (after a crash, an upgrade, an OOM kill), so one refused connection does not prove that it has gone. A
*sign* of aws-node is a listener on its socket or port, its pod, or a write of its file. If there was a sign in this boot, ADD is
served only after a minute without one. If there was none, ADD is not blocked. While aws-node's file has another content than our
daemon took over or wrote, each check compares the file with our rows (docs/adr/0043).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial

from ipamd.core.context import Service, ServiceContext
from ipamd.core.health import ConditionHandle, Phase
from ipamd.migration.backend import CniBackendServer
from ipamd.migration.export import ExportService
from ipamd.model.aws_node import GivenTwice, agent_pod, given_twice
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import IpamError, NotServingError, SettingsError, log_text
from ipamd.model.freeze import FreezeCause
from ipamd.model.repairs import NODE
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import first_of
from ipamd.ports.aws_node import AwsNode
from ipamd.ports.kernel import HostNetwork

CHECK_INTERVAL_S = 1.0
"""Seconds between two checks while a start waits for aws-node to go. Ours: a check costs little, because it only connects to a socket
of this node."""

RESTART_PAUSE_S = 0.5
"""Seconds from `ipamctl export --undo` to the end of the process. Ours: the reply is sent meanwhile, which takes milliseconds."""

CONDITION = "aws-node"
CONFLICT = "aws-node conflict"

ABSENCE_S = 60.0
"""Seconds without a sign of aws-node until ADD is served. Ours: kubelet restarts an ended container within 10 s at first, and aws-node
listens some seconds after its start. Later kubelet waits longer between restarts, but then the sandbox of aws-node's pod is a sign."""

NAMED_MAX = 5
"""The largest number of addresses that the condition names. Ours: a condition is one line; the audit names all of them."""

REMOVE = "remove its DaemonSet aws-node from this node"

log = logging.getLogger(__name__)


class OtherDaemon(Service):
    """Checks whether the daemon of amazon-vpc-cni-k8s (aws-node) is on the node. Safe from any thread.

    No method raises an error. If the state is not known, ADD is blocked (I11).
    """

    def __init__(self, context: ServiceContext, *, aws_node: AwsNode) -> None:
        super().__init__(context)
        self._freeze = context.freeze
        self._aws_node = aws_node
        self._hindrance = context.health.claim(CONDITION, part="daemon")
        self._lock = threading.Lock()
        self._pod = ""

    def check_pods(self, sandboxes: Iterable[Sandbox]) -> None:
        """Look for aws-node's pod in a complete list of the runtime's sandboxes."""
        pod = agent_pod(sandboxes)
        if pod != self._pod:
            self._pod = pod
            self.check()

    def check(self) -> str:
        """Check for aws-node, and block or unblock ADD. Returns: why aws-node may assign addresses now, "" if it does not.

        While this node is exported, nothing is checked, and the result is "".
        """
        with self._lock:  # for the whole check, so that an older check does not unblock ADD after a newer check has blocked it
            if self._aws_node.is_exporting:
                return ""
            is_overtaken = False
            try:
                reason = self._recent_sign()
                # If aws-node has run while we served, the addresses that it assigned are free in our rows until the next start.
                is_overtaken = self._health.phase is Phase.SERVING and self._aws_node.has_run_since()
            except IpamError as error:
                reason = f"it is not known whether amazon-vpc-cni-k8s is away: {log_text(error)}"
            overtaken = ""
            if is_overtaken:
                overtaken = "amazon-vpc-cni-k8s gave addresses while vpc-ipamd served"
            self._block_or_unblock_adds(reason or overtaken)
            self._report_conflict()
            return reason

    def _report_conflict(self) -> None:
        """Report the addresses that both daemons assigned."""
        conflict = None
        pairs = first_of([str(pair) for pair in self.given_twice()], NAMED_MAX)
        if pairs:
            conflict = problem(ConditionCode.GIVEN_TWICE, pairs=pairs, remedy=REMOVE)
        self._health.report(CONFLICT, conflict)

    def _recent_sign(self) -> str:
        """Describe the last sign of aws-node; "" if there is none, or if it is at least ABSENCE_S old. Raises: IpamError."""
        sign = self._aws_node.last_sign(pod=self._pod)
        if sign is None:
            return ""
        self._freeze.note_other_daemon(self._clock.monotonic() - sign.age_s)
        if sign.age_s >= ABSENCE_S:
            return ""
        age = ""
        if sign.age_s:
            age = f", {sign.age_s:.0f} s ago"
        return f"amazon-vpc-cni-k8s may give addresses of this node: {sign.text}{age}"

    def given_twice(self) -> tuple[GivenTwice, ...]:
        """Return the addresses that both daemons assigned, by aws-node's file and our rows. Returns () if the file cannot be read."""
        try:
            if self._aws_node.is_exporting or not self._aws_node.has_run_since():
                return ()
            return given_twice(self._datastore.attachments(), self._aws_node.allocations())
        except IpamError as error:
            self._health.record_error(CONFLICT, error)
            return ()

    def _block_or_unblock_adds(self, reason: str) -> None:
        sentence = (
            f"{reason}; {REMOVE}; ADD is served {ABSENCE_S:.0f} s after its last sign; two daemons must not share a node (I20)"
        )
        if reason:
            self._freeze.note_other_daemon(self._clock.monotonic())
            self._health.block_adds(CONDITION, sentence)
            self._freeze.set(FreezeCause.AWS_NODE, "amazon-vpc-cni-k8s may use what we hold")
        elif self._health.are_adds_blocked:
            # Called only if ADD was blocked, because `serve_adds` restarts the time for which STATUS waits for a start.
            self._health.serve_adds(CONDITION)
            self._freeze.clear(FreezeCause.AWS_NODE)
        self._hindrance.report(problem(ConditionCode.OTHER_DAEMON, cause=sentence) if reason else None)


def end_soon(end: Callable[[str], None], reason: str) -> None:
    """Call `end` after RESTART_PAUSE_S in another thread. If no thread can be made, call it at once; only the reply is lost then."""
    timer = threading.Timer(RESTART_PAUSE_S, end, [reason])
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        end(reason)


class Handover:
    """The steps of the handover in one process. The thread of the start, the maintenance and the keeper of the conflist call them."""

    def __init__(
        self,
        *,
        aws_node: AwsNode,
        is_overtaken: bool,
        export: ExportService,
        other: OtherDaemon,
        backend: CniBackendServer | None,
        backend_condition: ConditionHandle,
        hostnet: HostNetwork,
        identity: Callable[[], InstanceIdentity | None],
        stopped: threading.Event,
        quiesce: Callable[[], None],
        leave_mark: Callable[[], None],
        end: Callable[[str], None],
        left_chains: Callable[[], tuple[Collection[str] | None, bool]],
    ) -> None:
        """Prepare the handover.

        Args:
            is_overtaken: whether aws-node's file was written after our rows, so that this process began with new rows.
            other: checks for aws-node.
            backend: serves the plugin of amazon-vpc-cni-k8s; None if the settings do not require it.
            stopped: set when our daemon is stopped.
            quiesce: ends every loop that changes something.
            leave_mark: writes the mark by which STATUS does not fail while ADD is blocked (`ServedMark.leave`).
            end: ends the process for the given reason, so that the next process starts.
            left_chains: see `ImportService.left_chains`.
        """
        self._leave_mark = leave_mark
        self._aws_node = aws_node
        self._is_overtaken = is_overtaken
        self._export = export
        self._other = other
        self._stopped = stopped
        self._end = end
        self._left_chains = left_chains
        self._hostnet = hostnet
        self._identity = identity
        self._is_tidy = False
        self._backend, self._backend_condition = backend, backend_condition

        self._export.follow(quiesce=quiesce, restart=partial(end_soon, end), release=hostnet.allow_neighbour_discovery)

    def begin(self) -> bool:
        """Wait until aws-node is away. Returns: whether the start may go on.

        It must not go on if the node was exported to aws-node, or if this process must end. Raises: NotServingError if our daemon is
        stopped.
        """
        if self._aws_node.is_exporting:
            self._export.hold()
            log.warning("this node was exported to amazon-vpc-cni-k8s: DEL is served, ADD is not")
            return False
        while self._other.check():
            self._leave_mark()
            if self._stopped.wait(CHECK_INTERVAL_S):
                raise NotServingError("vpc-ipamd is shutting down")
        if self._aws_node.has_run_since() and not self._is_overtaken:
            self._end("amazon-vpc-cni-k8s wrote its file after our rows had been opened: the next start rebuilds them")
            return False
        if self._backend is not None:  # a failure to listen on aws-node's socket is a condition, and does not end the start
            try:
                self._backend.start()
                log.info("serving the socket of amazon-vpc-cni-k8s socket=%s", self._backend.path)
            except SettingsError as error:
                refused = problem(ConditionCode.BACKEND_REFUSED, cause=error)
                self._backend_condition.report(refused, error=error)
        return True

    def finish(self) -> None:
        """Record that the addresses in aws-node's file are taken over. Raises: ForeignStateError, TakeoverError."""
        # The check comes first: after the file is recorded as taken over, its version does not show any more that aws-node has run.
        self._other.check()
        self._aws_node.finish()

    def remove_left_chains(self) -> str:
        """Remove the chains of amazon-vpc-cni-k8s that our own nftables table replaces, if aws-node is away.

        Returns: the names of the removed chains; "" if none was removed. Raises: WiringError, KernelDumpError.
        """
        identity = self._identity()
        if self._is_tidy or identity is None or self._other.check():
            return ""
        for difference in self._hostnet.differences(identity=identity, enis=()):
            if difference.subject == NODE and difference.will_be_repaired:
                return ""  # a repair of the node's networking is due, so our table is perhaps not in place yet
        names, self._is_tidy = self._left_chains()
        removed = self._hostnet.remove_left_chains(names)
        if removed:
            log.warning("chains of amazon-vpc-cni-k8s removed chains=%s", removed)
        return removed

    def check(self) -> bool:
        """Check for aws-node while our daemon serves. Returns: whether aws-node is away and has assigned no address in the meantime.

        If aws-node assigned addresses and has gone, the process ends. Pods have addresses that are free in our rows, and the next
        start takes these addresses over. Raises: ForeignStateError.
        """
        if self._other.check():
            return False
        if not self._aws_node.has_run_since():
            return True
        if not self._aws_node.is_exporting:
            self._end("amazon-vpc-cni-k8s gave addresses while vpc-ipamd served: the next start rebuilds our rows")
        return False

    def take_conflist(self) -> str:
        """Rename aws-node's conflist if aws-node is away, because a runtime would use it instead of ours.

        Returns: a sentence about the renaming; "" if nothing was renamed. Raises: TakeoverError, ForeignStateError.
        """
        # `is_exporting` is read again after the check, because an export may begin during the check. The runtime must use aws-node's
        # conflist then.
        if self._aws_node.is_exporting or not self.check() or self._aws_node.is_exporting:
            return ""
        change = self._aws_node.save_conflist()
        if change:
            self._is_tidy = False  # aws-node has run, and has made its chains again
            log.warning("conflist of amazon-vpc-cni-k8s renamed, `ipamctl export` restores it done=%s", change)
        return change
