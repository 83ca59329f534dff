"""The facts about this node while the daemon runs: its identity, its container runtime, and whether EC2 answers.

Only `NodeInfo` stores the node's identity. Services get `identity` (the last known) or `refresh_identity` (asks instance metadata
first) as callables. They keep no copy, which would become stale when the VPC's CIDRs or the primary ENI's security groups change.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError, DatastoreError, log_text
from ipamd.model.sandbox import RuntimeInfo
from ipamd.model.words import CLOUD_NOT_ASKED
from ipamd.ports.cloud import Metadata
from ipamd.ports.datastore import Datastore
from ipamd.ports.process import Clock

SILENCE_S = 30.0
"""Time after a failure of metadata for which the last known identity is used without a retry. Ours: a try takes up to 8 s, so tries
take a fifth of the time at most."""

log = logging.getLogger(__name__)


class NodeInfo:
    """The identity, the runtime and the state of EC2. Safe from any thread without a lock: each fact is one value, replaced whole.

    `cloud`: whether EC2 answered the last call, and a sentence about the answer.
    """

    def __init__(self, metadata: Metadata, *, datastore: Datastore, clock: Clock) -> None:
        self._metadata = metadata
        self._datastore = datastore
        self._clock = clock
        self._refresh_deadline = clock.monotonic()
        self._identity = datastore.identity()
        self._runtime: RuntimeInfo | None = None
        self.cloud = False, CLOUD_NOT_ASKED

    def learn_identity(self) -> InstanceIdentity:
        """Read the node's identity from instance metadata, and store it. Raises: CloudError; then the identity is unchanged."""
        identity = self._metadata.identity()
        last = self._identity
        if last is not None and not identity.security_group_ids:
            # An ENI has at least one security group. An empty list means that metadata lags, and with it no ENI can be created.
            identity = replace(identity, security_group_ids=last.security_group_ids)
        self._identity = identity
        if identity != self._datastore.identity():
            with suppress(DatastoreError), self._datastore.transaction() as uow:  # the datastore itself reports a failing disk
                uow.record_identity(identity)
        return identity

    def refresh_identity(self) -> InstanceIdentity:
        """Ask instance metadata again; if it does not answer, return the last known identity.

        This costs two or three requests to the metadata service and no EC2 call. For SILENCE_S after a failure it makes no request.
        Raises: CloudError if metadata has never answered.
        """
        last = self._identity
        if last is not None and self._clock.monotonic() < self._refresh_deadline:
            return last
        try:
            return self.learn_identity()
        except CloudError as error:
            if last is None:
                raise
            # The adapter has waited for seconds already. An ADD that waits for an ENI must not wait as long again at the next refresh.
            self._refresh_deadline = self._clock.monotonic() + SILENCE_S
            log.info("instance metadata did not answer; the last known identity is used error=%s", log_text(error))
            return last

    def identity(self) -> InstanceIdentity | None:
        """The node's identity in the last answer of instance metadata since the boot; None if metadata never answered."""
        return self._identity

    def runtime(self) -> RuntimeInfo | None:
        """The container runtime that answered; None before its first answer."""
        return self._runtime

    def region(self) -> str:
        """The region for EC2. Raises: CloudError while it is not known."""
        if self._identity is None:
            raise CloudError("the region is not known yet", details="instance metadata has not answered; it is asked again")
        return self._identity.region

    def vpc_id(self) -> str:
        """The VPC of this node; empty while it is not known."""
        if self._identity is None:
            return ""
        return self._identity.vpc_id

    def set_runtime(self, runtime: RuntimeInfo) -> None:
        """Record which runtime answered."""
        self._runtime = runtime
