"""The name of a new sandbox's host veth: made from the key, or, where a setting asks for it, from the pod's name.

Calico in policy-only mode and aws-network-policy-agent compute the name that amazon-vpc-cni-k8s gives, and attach their policy to the
link of that name. Two sandboxes of one pod cannot both have it, and a name of another form would escape policy; so the name goes from
a predecessor that is not ready any more to its successor, and otherwise the ADD is refused and retried (docs/adr/0024).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ipamd.core.context import ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment, pod_veth_name, veth_name
from ipamd.model.cniresult import renamed_result
from ipamd.model.errors import IpamError, VethNameTakenError, log_text
from ipamd.model.ids import AttachmentKey, ContainerId
from ipamd.model.request import AttachRequest
from ipamd.model.sandbox import SandboxState
from ipamd.ports import Runtime
from ipamd.sandbox.cooldown import Cooldown

FAILPOINTS = ("rename.recorded",)

POD_IFNAME = "eth0"
"""The interface whose host veth carries the pod's name: what kubelet calls the pod's own. Others are named by their key."""

log = logging.getLogger(__name__)


class VethNames:
    """Names host veths. Locks: the sandbox's, then the name's, then the predecessor's."""

    def __init__(
        self, context: ServiceContext, *, cooldown: Cooldown, runtime: Runtime | None, prefix: str, is_by_pod: bool
    ) -> None:
        """`runtime` None: nobody can say that a predecessor is not ready."""
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._locks = context.locks
        self._failpoint = context.failpoint
        self._cooldown = cooldown
        self._runtime = runtime
        self._prefix = prefix
        self._is_by_pod = is_by_pod

    @contextmanager
    def claimed(self, request: AttachRequest, deadline: Deadline) -> Iterator[str]:
        """Yield the name for a sandbox that is not attached; for the block nobody else wires a link of this name.

        Raises: VethNameTakenError, BusyError, WiringError, DatastoreError. Without the setting it costs nothing and raises nothing.
        """
        key, names = request.key, request.names
        if not (self._is_by_pod and names.pod_name and names.pod_namespace and key.ifname == POD_IFNAME):
            yield veth_name(key, prefix=self._prefix)
            return
        name = pod_veth_name(names.pod_namespace, names.pod_name, prefix=self._prefix)
        with self._locks.hold(AttachmentKey(ContainerId(name), key.ifname), "NAME", deadline):
            self._free(name, key, deadline)
            yield name

    def _free(self, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Take the name from whatever has it in kernel or datastore."""
        if self._cooldown.is_dying(name):
            self._cooldown.sweep()
        occupant = self._wiring.veth(name)
        if self._cooldown.is_dying(name) or (occupant is not None and occupant.is_dying):
            raise VethNameTakenError(f"host veth {name} of sandbox {key} is being deleted", details="retry")
        for attachment in self._datastore.attachments():
            if attachment.host_veth == name and attachment.key != key:
                self._rename(attachment.key, name, key, deadline)
        if occupant is None or occupant.key == key:
            return
        if occupant.key is None:
            raise VethNameTakenError(
                f"host veth {name} of sandbox {key} is taken by a link without our alias", details=f"see `ip -d link show {name}`"
            )
        if self._wiring.veth(name) is not None:
            self._take_from(occupant.key, name, key, deadline)

    def _take_from(self, owner: AttachmentKey, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """The link still has the name: its row has another one after a crash, or it has no row."""
        if self._datastore.attachment(owner) is not None:
            self._rename(owner, name, key, deadline)
        elif self._datastore.is_tombstoned(owner):
            self._wiring.remove_leftover(host_veth=name, address=None)
        else:
            raise VethNameTakenError(
                f"host veth {name} of sandbox {key} is that of {owner}, which is not recorded",
                details="it is adopted or removed by itself; retry",
            )

    def _rename(self, owner: AttachmentKey, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Give a sandbox's link the name of its own key: the record first, because DEL goes by it. Nothing if it has gone."""
        with self._locks.hold(owner, "RENAME", deadline):
            attachment = self._datastore.attachment(owner)
            if attachment is None:
                return
            held = self._wiring.veth(name)
            is_wired = held is not None and held.key == owner
            if is_wired:
                self._require_not_ready(attachment, name, key)
            to = veth_name(owner, prefix=self._prefix)
            if attachment.host_veth != to:
                with self._datastore.transaction() as uow:
                    result = renamed_result(attachment.result, attachment.host_veth, to)
                    uow.rename_veth(owner, host_veth=to, result=result)
                self._failpoint("rename.recorded")
            if is_wired:
                self._wiring.rename_veth(host_veth=name, to=to, address=attachment.address)
            log.info("host veth %s of sandbox %s is %s now: its pod has a new sandbox %s", name, owner, to, key)

    def _require_not_ready(self, attachment: Attachment, name: str, key: AttachmentKey) -> None:
        """Raise VethNameTakenError unless the runtime says that the predecessor is not ready; silence is no evidence (I11)."""
        state = "not known: CRI is off"
        if self._runtime is not None:
            try:
                states = {sandbox.container_id: sandbox.state for sandbox in self._runtime.sandboxes()}
            except IpamError as error:
                state = f"not known: {log_text(error)}"
            else:
                found = states.get(attachment.key.container_id)
                if found is SandboxState.NOTREADY:
                    return
                state = str(found) if found is not None else "not in the runtime's list"
        raise VethNameTakenError(
            f"host veth {name} of sandbox {key} is that of the pod's earlier sandbox {attachment.key}, which is {state}",
            details="retry: it goes over once that sandbox is not ready, or is deleted; no other name would be under network policy",
        )
