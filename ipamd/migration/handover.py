"""When this node changes hands between amazon-vpc-cni-k8s and us: who may give addresses, and whose conflist the runtime finds.

Two daemons that give addresses of the same ENIs give one twice (I1). So a start waits until the other one has been away for a minute
(`migration/other_daemon.py`), its file is read only then, and its conflist, which sorts before ours, is renamed only once we
are ready (docs/adr/0037). After `ipamctl export` nothing is given here any more (docs/adr/0038).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.core.health import Health
from ipamd.migration.backend import CniBackendServer
from ipamd.migration.export import ExportService
from ipamd.migration.other_daemon import OtherDaemon
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.kernel import NODE
from ipamd.ports import AwsNode, HostNetwork

LOOK_S = 1.0
"""How often a start looks whether the other daemon has gone. Ours: a connection to a socket of this node."""

RESTART_PAUSE_S = 0.5
"""For the reply to `ipamctl export --undo` to leave before the process ends. Ours."""

log = logging.getLogger(__name__)


class Handover:
    """One life of the daemon, as seen from the other software. Called by the start-up thread, and by the conflist's keeper."""

    def __init__(
        self,
        *,
        aws_node: AwsNode | None,
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
    ) -> None:
        """`is_overtaken`: its file was written after our rows, which were therefore made anew at this start. `quiesce` ends every
        loop that changes something; `leave_mark` says that this daemon is at work, for STATUS; `end` ends the process, for the next
        one to begin."""
        self._leave_mark = leave_mark
        self._aws_node = aws_node
        self._is_overtaken = is_overtaken
        self._export = export
        self._other = other
        self._health = health
        self._stopped = stopped
        self._end = end
        self._hostnet = hostnet
        self._identity = identity
        self._is_tidy = False
        self._backend = backend

        def restart(reason: str) -> None:
            timer = threading.Timer(RESTART_PAUSE_S, end, [reason])
            timer.daemon = True
            timer.start()

        self._export.follow(quiesce=quiesce, restart=restart)

    def begin(self) -> bool:
        """Return once the other daemon is away; False if this node is to be its, or this process must not go on.

        Raises: NotServingError if the daemon is stopped.
        """
        if self._aws_node is None:
            return True
        if self._export.is_begun:
            self._export.hold()
            log.warning("this node was exported to amazon-vpc-cni-k8s: DEL is served, ADD is not")
            return False
        while self._other.look():
            self._leave_mark()
            if self._stopped.wait(LOOK_S):
                raise NotServingError("vpc-ipamd is shutting down")
        if self._other.is_overtaken() and not self._is_overtaken:
            self._end("amazon-vpc-cni-k8s wrote its file after our rows had been opened: they are made anew")
            return False
        self._serve_its_plugin()
        return True

    def _serve_its_plugin(self) -> None:
        """Listen where the other daemon did, if a setting asks for it; a refusal is a condition."""
        if self._backend is None or self._aws_node is None:
            return
        try:
            self._backend.start()
        except SettingsError as error:
            self._health.report("cni-backend", f"cni-backend: the other's plugin is not served: {error}", error=error)
            return
        log.info("the plugin of amazon-vpc-cni-k8s is served on %s", self._backend.path)

    def settle(self) -> None:
        """Note that what the other had given is taken over. Raises: ForeignStateError, TakeoverError."""
        if self._aws_node is not None:
            self._other.look()  # first: what is noted as taken over is no sign any more
            self._aws_node.settle()

    def tidy(self) -> str:
        """Remove the other's chains, once: its daemon is away, and our own table does for every sandbox what they did.

        Returns: what was removed. Raises: WiringError, KernelDumpError.
        """
        identity = self._identity()
        if self._is_tidy or self._aws_node is None or identity is None or self._other.look():
            return ""
        if any(one.subject == NODE and one.is_repaired for one in self._hostnet.differences(identity=identity, enis=())):
            return ""  # our table is not in place yet
        removed = self._hostnet.remove_left_chains()
        self._is_tidy = True
        if removed:
            log.warning("removed what amazon-vpc-cni-k8s had left in nftables: %s", removed)
        return removed

    def look(self) -> bool:
        """Look for its daemon while we serve. Returns: whether it is away, and gave nothing.

        If it has gone and gave addresses the process ends: pods have them that our rows call free, and the next start takes those
        over. Raises: ForeignStateError.
        """
        if self._other.look():
            return False
        if not self._other.is_overtaken():
            return True
        if not self._is_exported():
            self._end("amazon-vpc-cni-k8s gave addresses while we served: our rows are made anew")
        return False

    def take_conflist(self) -> str:
        """Rename the other's conflist, which a runtime would use instead of ours, while its daemon is away.

        Returns: what was done, "" if there was nothing to do. Raises: TakeoverError, ForeignStateError.
        """
        aws_node = self._aws_node
        # An export may begin while the other is looked for: then its conflist is what the runtime is to use.
        if aws_node is None or self._is_exported() or not self.look() or self._is_exported():
            return ""
        said = aws_node.save_conflist()
        if said:
            self._is_tidy = False  # its daemon was here: it made its chains anew
            log.warning("%s: it sorts before ours; `ipamctl export` puts it back", said)
        return said

    def _is_exported(self) -> bool:
        """Whether an export is at work or done: another thread begins it."""
        return self._export.is_begun
