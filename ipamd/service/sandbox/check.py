"""CHECK: compare a sandbox's wiring with its record. Reports every difference at once and repairs nothing."""

from __future__ import annotations

from ipamd.model.cniresult import recorded_spec, result_differences
from ipamd.model.errors import CheckFailedError, UnknownAttachmentError
from ipamd.model.request import AttachRequest
from ipamd.service.context import ServiceContext
from ipamd.service.request import Deadline


class CheckService:
    """CHECK."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
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
        if problems:
            raise CheckFailedError(f"sandbox {request.key} differs from its record", details="; ".join(problems))
