"""Name the host veth of a new sandbox after its key, or after its pod if a setting requires that.

Calico in policy-only mode and aws-network-policy-agent compute the name that amazon-vpc-cni-k8s gives to a pod's link, and attach
their policy to the link of that name. Two sandboxes of one pod cannot both have a link of that name, and no policy would apply to a
link of another name. So the name moves from the pod's earlier sandbox (the predecessor) to its new sandbox, if the predecessor is not
ready any more. If the predecessor is ready, the ADD is refused and the runtime retries it (docs/adr/0024).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import VETH_HASH_LENGTH, Attachment, name_key, pod_veth_name, veth_name
from ipamd.model.card_interfaces import interface_number
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import AttachmentKey
from ipamd.model.record import replace
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.model.sandbox import SandboxState
from ipamd.ports.runtime import Runtime
from ipamd.sandbox.cooldown import Cooldown

log = logging.getLogger(__name__)


class VethNames(Service):
    """Names host veths. Locks are taken in this order: the lock of the new sandbox, which the caller holds; the lock of the name;
    the lock of the earlier sandbox that has the name.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        runtime: Runtime | None,
        prefix: str,
        is_by_pod: bool,
        own_prefix: str = "",
    ) -> None:
        """Keep the settings.

        Args:
            runtime: None if CRI is off. Then every predecessor keeps its name, because it may still be ready.
            prefix: the common prefix of the names of host veths. It is also used in the key of the lock on a pod's name.
            is_by_pod: whether links are named after pods.
            own_prefix: the prefix of the links that this object names, if it differs from `prefix`.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._runtime = runtime
        self._lock_prefix = prefix
        self._prefix = own_prefix or prefix
        self._is_by_pod = is_by_pod

    @contextmanager
    def claimed(self, request: AttachRequest, deadline: Deadline) -> Iterator[str]:
        """Yield the name for a sandbox that is not attached. During the block no other ADD wires a link of this name.

        If links are not named after pods, the runtime does not name the pod, or the interface has no number of a network card, the
        name is derived from the key. Then no lock is taken and nothing is raised.
        Raises: VethNameTakenError, BusyError, WiringError, DatastoreError.
        """
        key, names = request.key, request.names
        number = interface_number(key.ifname)
        if not (self._is_by_pod and names.pod_name and names.pod_namespace and number is not None):
            yield veth_name(key, prefix=self._prefix)
            return
        name = pod_veth_name(names.pod_namespace, names.pod_name, prefix=self._prefix, number=number)
        pod_link = self._lock_prefix + name[-VETH_HASH_LENGTH:]
        with self._locks.hold(name_key(pod_link), "NAME", deadline):
            self._free_name(name, pod_link, key, deadline)
            yield name

    def _free_name(self, name: str, pod_link: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Free the name for this sandbox: delete the dying link of that name, or rename the recorded sandbox that has it.

        Raises: VethNameTakenError if the name cannot be freed, for example because a foreign link has it.
        Args:
            pod_link: the name of the pod's link with the common prefix. It is freed too if a recorded sandbox or a dying link has it,
                because a policy agent prefers it to `name`.
        """
        if self._cooldown.is_dying(name, pod_link):
            self._cooldown.sweep()
        occupant = self._wiring.veth(name)
        if self._cooldown.is_dying(name, pod_link) or (occupant and occupant.is_dying):
            raise refusal(RefusalCode.NAME_DYING, veth=name, sandbox=key)
        self._rename_predecessors(name, pod_link, key, deadline)
        if occupant is None or occupant.key == key:
            return
        if occupant.key is None:
            raise refusal(RefusalCode.NAME_OF_FOREIGN_LINK, veth=name, sandbox=key)
        if self._wiring.veth(name):
            self._take_from(occupant.key, name, key, deadline)

    def _rename_predecessors(self, name: str, pod_link: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Rename the links of other recorded sandboxes that are named `name` or `pod_link`."""
        for attachment in self._datastore.attachments():
            if attachment.host_veth in (name, pod_link) and attachment.key != key:
                self._rename(attachment.key, attachment.host_veth, key, deadline)

    def _take_from(self, occupant: AttachmentKey, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Free a name that is the name of another sandbox's link, but is in no row. Raises: VethNameTakenError."""
        if self._datastore.attachment(occupant) is not None:  # after a crash, the row may have another name than the link
            self._rename(occupant, name, key, deadline)
        elif self._datastore.is_tombstoned(occupant):
            self._wiring.remove_leftover(host_veth=name, address=None)
        else:
            raise refusal(RefusalCode.NAME_OF_UNRECORDED, veth=name, sandbox=key, holder=occupant)

    def _rename(self, owner: AttachmentKey, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Name the link of `owner` after its key. Does nothing if `owner` has no row.

        The record is renamed before the link. If the process is killed in between, the record has the name by key, and a DEL finds the
        link with its former name by the alias.
        """
        with self._locks.hold(owner, "RENAME", deadline):
            attachment = self._datastore.attachment(owner)
            if attachment is None:
                return
            veth = self._wiring.veth(name)
            is_wired = veth and veth.key == owner
            if is_wired:
                self._require_not_ready(attachment, name, key)
            new_name = veth_name(owner, prefix=name[:-VETH_HASH_LENGTH])
            if attachment.host_veth != new_name:
                with self._datastore.transaction() as uow:
                    uow.rename_veth(owner, host_veth=new_name)
                self._failpoint("rename.recorded")
            if is_wired:
                self._wiring.rename_veth(replace(attachment.wiring, host_veth=name), to=new_name)
            log.info(
                "a host veth is renamed, its pod has a new sandbox veth=%s sandbox=%s name=%s successor=%s",
                name,
                owner,
                new_name,
                key,
            )

    def _require_not_ready(self, attachment: Attachment, name: str, key: AttachmentKey) -> None:
        """Check that the runtime lists the predecessor as not ready. Raises: VethNameTakenError, also without an answer (I11)."""
        state = "not known: CRI is off"
        if self._runtime is not None:
            try:
                states = {sandbox.container_id: sandbox.state for sandbox in self._runtime.sandboxes()}
            except IpamError as error:
                state = f"not known: {log_text(error)}"
            else:
                listed_state = states.get(attachment.key.container_id)
                if listed_state is SandboxState.NOTREADY:
                    return
                state = str(listed_state or "not in the runtime's list")
        raise refusal(RefusalCode.NAME_OF_PREDECESSOR, veth=name, sandbox=key, holder=attachment.key, state=state)
