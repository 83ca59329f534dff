"""What is known of this node while the daemon runs: who it is, which runtime answers, whether EC2 does.

The one home of the node's identity. Services take `identity` (what is known now) or `refresh_identity` (ask instance metadata
first) as callables and keep no copy: a copy would go stale when somebody changes the VPC's CIDRs or the primary ENI's security
groups.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, DatastoreError, log_text
from ipamd.model.sandbox import RuntimeInfo
from ipamd.model.words import CLOUD_NOT_ASKED
from ipamd.ports import Clock, Datastore, Metadata

SILENCE_S = 30.0
"""How long the last known identity is used without asking again after metadata did not answer. Ours: a try takes up to 8 s."""

log = logging.getLogger(__name__)


class NodeInfo:
    """Safe from any thread without a lock: each fact is one value, replaced whole. `cloud`: whether EC2 answered at the last try, and
    what it said."""

    def __init__(self, metadata: Metadata, *, datastore: Datastore, clock: Clock) -> None:
        self._metadata = metadata
        self._datastore = datastore
        self._clock = clock
        self._refresh_deadline = clock.monotonic()
        self._identity = datastore.identity()
        self._runtime: RuntimeInfo | None = None
        self.cloud = False, CLOUD_NOT_ASKED

    def learn_identity(self) -> InstanceIdentity:
        """Ask instance metadata who this node is, and remember it. Raises: CloudError; then the identity is unchanged."""
        identity = self._metadata.identity()
        if (known := self._identity) is not None and not identity.security_group_ids:
            # An ENI has at least one group: an empty list is metadata that has not caught up, and no ENI can be created with it.
            identity = replace(identity, security_group_ids=known.security_group_ids)
        self._identity = identity
        if identity != self._datastore.identity():
            with suppress(DatastoreError), self._datastore.transaction() as uow:  # a disk that refuses is told by what needs it
                uow.record_identity(identity)
        return identity

    def refresh_identity(self) -> InstanceIdentity:
        """Ask instance metadata again; if it does not answer, return the last known identity.

        Costs two or three requests to the instance's own metadata service and no EC2 call.
        Raises: CloudError if it never answered.
        """
        known = self._identity
        if known is not None and self._clock.monotonic() < self._refresh_deadline:
            return known
        try:
            return self.learn_identity()
        except CloudError as error:
            if known is None:
                raise
            # The adapter has waited for seconds already: an ADD that waits for an ENI must not pay for that again and again.
            self._refresh_deadline = self._clock.monotonic() + SILENCE_S
            log.info("instance metadata did not answer; the last known identity is used error=%s", log_text(error))
            return known

    def identity(self) -> InstanceIdentity | None:
        """Who this node is, as instance metadata last said since the boot; None if it never answered."""
        return self._identity

    def runtime(self) -> RuntimeInfo | None:
        """Which runtime answered."""
        return self._runtime

    def region(self) -> str:
        """The region for EC2. Raises: CloudError while it is not known."""
        if self._identity is None:
            raise CloudError("the region is not known yet", details="instance metadata has not answered; it is asked again")
        return self._identity.region

    def vpc_id(self) -> str:
        """The VPC of this node; empty while it is not known."""
        return self._identity.vpc_id if self._identity else ""

    def set_runtime(self, runtime: RuntimeInfo) -> None:
        """Record which runtime answered."""
        self._runtime = runtime
