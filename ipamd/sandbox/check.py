"""CHECK: compare a sandbox's wiring with its record, and the host that carries its packets with what it must be.

Reports every difference at once and repairs nothing: the host network reconciler does.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.core.context import ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec, result_differences
from ipamd.model.errors import CheckFailedError, UnknownAttachmentError
from ipamd.model.request import AttachRequest
from ipamd.ports import HostNetwork


class CheckService:
    """CHECK."""

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork, identity: Callable[[], InstanceIdentity | None]) -> None:
        """`identity` is None until instance metadata answers: then the node's own routing is not compared."""
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._hostnet = hostnet
        self._identity = identity
        self._locks = context.locks

    def check_sandbox(self, request: AttachRequest, *, deadline: Deadline) -> None:
        """Compare a sandbox with its record.

        Raises: UnknownAttachmentError if there is no record; CheckFailedError with every difference; KernelDumpError if the
            kernel could not be read.
        """
        with self._locks.hold(request.key, "CHECK", deadline):
            known = self._datastore.attachment(request.key)
            if known is None:
                raise UnknownAttachmentError(
                    f"sandbox {request.key} is not attached", details="DEL it and let the runtime make a new one"
                )
            problems = []
            if request.prev_result is not None:
                problems += result_differences(
                    request.prev_result, ifname=request.key.ifname, address=known.address, netns=request.netns
                )
            problems += self._wiring.check(recorded_spec(known, netns=request.netns))
            problems += self._host_faults(known)
        if problems:
            raise CheckFailedError(f"sandbox {request.key} differs from its record", details="; ".join(problems))

    def _host_faults(self, known: Attachment) -> list[str]:
        """What of the node, and of the ENI that has the address, keeps packets from the sandbox."""
        eni = self._datastore.eni(known.eni_id)
        if eni is None:
            return [f"{known.eni_id}, which has its address, is gone"]
        found = self._hostnet.differences(identity=self._identity(), enis=[eni])
        return [f"host: {difference}" for difference in found if difference.is_cut]
