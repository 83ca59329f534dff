"""Decide whether a call that releases an ENI or addresses of the instance may be made now.

A plan checks the freeze, but a release can stay open long after its plan, because EC2 failed or the daemon restarted. Meanwhile an
operator may have frozen the pool, or amazon-vpc-cni-k8s may have been started, which assigns the same addresses to its own pods (I20,
I2). So the guard checks again before each call, and looks for that daemon each time. A release that began before that daemon ran here
is never continued, because it is not known which addresses that daemon has assigned. Such a release is undone, and the pool plans
again.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.core.context import Service, ServiceContext
from ipamd.eni.operations import OperationLog
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CloudError
from ipamd.model.intent import Intent

STOPPED = "stopped release"
"""Back-off key, with an intent's ID: the time until Describe surely shows the outcome of the intent's last EC2 call."""


class FrozenError(CloudError):
    """A call was not made, because the pool is frozen, or because amazon-vpc-cni-k8s may use, or has used, the node's ENIs.

    `again_s`: seconds until Describe surely shows the outcome of an earlier EC2 call; 0 if no earlier call matters.
    """

    def __init__(self, message: str, *, details: str, again_s: float = 0.0) -> None:
        super().__init__(message, details=details)
        self.again_s = again_s


class ReleaseGuard(Service):
    """Checks before each call whether a release or a creation may be made now. Used by the pool's thread."""

    def __init__(
        self, context: ServiceContext, *, operations: OperationLog, look_for_other_daemon: Callable[[], object] = lambda: None
    ) -> None:
        """`look_for_other_daemon` sets the cause `aws-node` of the freeze if amazon-vpc-cni-k8s runs here. It must not raise."""
        super().__init__(context)
        self._freeze = context.freeze
        self._log = operations
        self._look_for_other_daemon = look_for_other_daemon

    def why_frozen(self) -> str:
        """Look for the other daemon, and return why nothing may be released now; "" if releases are allowed."""
        self._look_for_other_daemon()
        return self._freeze.reason

    def why_shared(self) -> str:
        """Return why another daemon may use this node's ENIs, according to the last look for one; "" if none may."""
        if self._freeze.is_shared:
            return self._freeze.reason
        return ""

    def was_shared(self, intent: Intent) -> bool:
        """Whether amazon-vpc-cni-k8s was seen after an intent was opened, even if it is gone."""
        return self._freeze.other_daemon_seen_since(self._log.opened_at_s(intent))

    def require_release_allowed(self, intent: Intent) -> None:
        """Check that a release may be continued. Raises: FrozenError."""
        reason = self.why_frozen()
        if not reason and self.was_shared(intent):
            reason = "amazon-vpc-cni-k8s was on this node after this release had begun"
        if reason:
            left_s = self._settles_in_s(intent)
            raise FrozenError("nothing is released", details=f"a release that has begun is undone: {reason}", again_s=left_s)
        self._backoffs.clear((STOPPED, intent.intent_id))

    def require_creation_allowed(self) -> None:
        """Check that no other daemon may use this node's ENIs, according to the last look for one. Raises: FrozenError."""
        reason = self.why_shared()
        if reason:
            raise FrozenError("no ENI is created or attached", details=reason)

    def require_unshared(self) -> None:
        """Look for another daemon that may use this node's ENIs. Raises: FrozenError if there is one."""
        self._look_for_other_daemon()
        reason = self.why_shared()
        if reason:
            raise FrozenError("no ENI is detached", details=reason)

    def may_detach_unrecorded(self, intent: Intent, *, is_wired: Callable[[], bool]) -> bool:
        """Whether an attached ENI without a row may be detached again.

        `is_wired` returns whether the kernel has wired any of its addresses to a sandbox.
        """
        self._look_for_other_daemon()
        if self.why_shared():
            return False
        return not (self.was_shared(intent) and is_wired())

    def has_settled(self, intent: Intent) -> bool:
        """Whether RECENT_S seconds have passed, after which Describe surely shows the outcome of an intent's last EC2 call.

        They count from when this guard first looks at the intent after that call: here, or in `require_release_allowed` when it
        refuses.
        """
        return not self._settles_in_s(intent)

    def retain(self, intent_ids: set[str]) -> None:
        """Drop the state of intents that are not open any more."""
        self._backoffs.retain(STOPPED, intent_ids)

    def _settles_in_s(self, intent: Intent) -> float:
        key = (STOPPED, intent.intent_id)
        if not self._backoffs.keys(*key):
            self._backoffs.put(key, in_s=RECENT_S)
        return self._backoffs.left_s(key)
