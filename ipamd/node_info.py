"""What becomes known of this node while the daemon runs: who it is, which runtime answers, whether EC2 does."""

from __future__ import annotations

import threading

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError
from ipamd.model.sandbox import RuntimeInfo
from ipamd.model.words import CLOUD_NOT_ASKED


class NodeInfo:
    """Written by start-up, read by everyone; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._identity: InstanceIdentity | None = None
        self._runtime: RuntimeInfo | None = None
        self._cloud_detail = CLOUD_NOT_ASKED
        self._is_cloud_reachable = False

    @property
    def identity(self) -> InstanceIdentity | None:
        """Who this node is, once instance metadata told."""
        with self._lock:
            return self._identity

    @property
    def runtime(self) -> RuntimeInfo | None:
        """Which runtime answered."""
        with self._lock:
            return self._runtime

    def region(self) -> str:
        """The region for EC2. Raises: CloudError while it is not known."""
        identity = self.identity
        if identity is None:
            raise CloudError("the region is not known yet", details="instance metadata has not answered; it is asked again")
        return identity.region

    def set_identity(self, identity: InstanceIdentity) -> None:
        """Instance metadata answered."""
        with self._lock:
            self._identity = identity

    def set_runtime(self, runtime: RuntimeInfo) -> None:
        """The runtime answered."""
        with self._lock:
            self._runtime = runtime

    def set_cloud(self, *, reachable: bool, detail: str) -> None:
        """EC2 answered, or did not."""
        with self._lock:
            self._is_cloud_reachable, self._cloud_detail = reachable, detail

    def cloud(self) -> tuple[bool, str]:
        """Whether EC2 answered at the last try, and what it said."""
        with self._lock:
            return self._is_cloud_reachable, self._cloud_detail
