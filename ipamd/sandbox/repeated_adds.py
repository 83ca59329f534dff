"""Keep a pod that the runtime begins again and again from filling the node.

A pod whose sandboxes fail after our ADD is tried anew every few seconds. If their DEL comes, each leaves an address that cools. If it
does not, because a plugin behind ours fails (containerd issue 12130), each leaves a recorded sandbox until the reaper has its proofs.
So a pod may have EARLIER_MAX such sandboxes; the addresses that it holds besides its present one are no demand for the pool; and each
of its ADDs has the runtime listed early.

The names come from the runtime (CNI_ARGS). They decide what is refused and how much is asked for, and never what is freed
(docs/adr/0001): a newer sandbox of a pod is no evidence about an older one (I2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ipamd.model.address import AddressState
from ipamd.model.cause import Cause
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError
from ipamd.model.family import IpAddress
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.model.repeats import UNDELETED_STEP, PodId, Repeats, pod_of, repeats
from ipamd.model.words import counted
from ipamd.ports.datastore import Datastore
from ipamd.sandbox.last_pods import LastPods

EARLIER_MAX = 2
"""Recorded sandboxes of a pod beside which it gets no third one. Ours: kubelet begins a sandbox when the one before has failed, so a
second one may be on its way out when the third is begun; at its 11 s between attempts the reaper keeps up with them."""

NAMED_MAX = 3
"""Pods that a refusal names. Ours."""

ID_SHOWN = 13
"""Characters of a container ID in a refusal: as many as `crictl pods` shows."""


class RepeatedAdds:
    """Safe from any thread."""

    def __init__(self, datastore: Datastore, *, is_reaped: bool) -> None:
        """`is_reaped`: sandboxes without a DEL are found. Else none is refused: one that is gone would keep its pod away for ever."""
        self._datastore = datastore
        self._is_reaped = is_reaped
        self._last_pods = LastPods(self._is_free)
        for attachment in datastore.attachments():
            self._last_pods.took(attachment.address, pod_of(attachment))

    def is_repeat(self, request: AttachRequest) -> bool:
        """Whether an earlier sandbox of the pod is recorded, or its address cools."""
        pod = _pod_of_request(request)
        return pod is not None and (
            self._earlier(request, pod) != () or self._cooling_count(self._last_pods.addresses_of(pod)) > 0
        )

    def require_few(self, request: AttachRequest) -> bool:
        """Require that fewer than EARLIER_MAX other sandboxes of the pod are recorded.

        Returns: whether any is. Raises: UndeletedSandboxesError.
        """
        pod = _pod_of_request(request)
        earlier = () if pod is None else self._earlier(request, pod)
        if len(earlier) >= EARLIER_MAX and self._is_reaped:
            names = ", ".join(name[:ID_SHOWN] for name in earlier)
            raise refusal(
                RefusalCode.TOO_MANY_SANDBOXES,
                pod=request.names.pod,
                count=counted(len(earlier), "sandbox"),
                sandboxes=names,
                step=UNDELETED_STEP,
            )
        return bool(earlier)

    def took(self, request: AttachRequest, address: IpAddress) -> None:
        """Remember which pod has taken an address of the pool."""
        self._last_pods.took(address, _pod_of_request(request))

    def repeats(self) -> Repeats:
        """Addresses that pods hold beside that of their present sandbox. Cost: the number of pods.

        A pod that took one address only holds none beside it.
        """
        recorded = self._datastore.repeated_pods()
        cooling: Counter[PodId] = Counter()
        for pod, addresses in self._last_pods.of_several().items():
            cooling[pod] = self._cooling_count(addresses)
            recorded[pod] = len(self._datastore.sandboxes_of(pod))
        return repeats(recorded, cooling)

    def shortage(self, request: AttachRequest, *, cause: Cause) -> IpamError | None:
        """Return the refusal of an ADD for which there is no address, if earlier sandboxes of pods hold some; else None.

        `cause`: why the pool does not grow.
        """
        recorded = self._datastore.repeated_pods()
        pod = _pod_of_request(request)
        if pod is not None:
            recorded[pod] = len(self._earlier(request, pod)) + 1  # the sandbox that asks is the present one of its pod
        surplus = {pod: count for pod, count in recorded.items() if count > 1}
        if not surplus:
            return None
        names = [f"{namespace}/{name}" for namespace, name, _ in sorted(surplus)]
        rest = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        sandbox_count = sum(surplus.values()) - len(surplus)
        return refusal(
            RefusalCode.ADDRESSES_UNDELETED,
            sandbox=request.key,
            count=counted(sandbox_count, "earlier sandbox"),
            pods=f"{', '.join(names[:NAMED_MAX])}{rest}",
            cause=cause,
            counts=self._datastore.counts(),
            step=UNDELETED_STEP,
        )

    def _earlier(self, request: AttachRequest, pod: PodId) -> tuple[str, ...]:
        """Container IDs of the pod's other recorded sandboxes."""
        return tuple(sorted(self._datastore.sandboxes_of(pod) - {request.key.container_id}))

    def _cooling_count(self, addresses: Iterable[IpAddress]) -> int:
        """How many of these addresses cool."""
        count = 0
        for address in addresses:
            row = self._datastore.address(address)
            if row is not None and row.state is AddressState.COOLING:
                count += 1
        return count

    def _is_free(self, address: IpAddress) -> bool:
        row = self._datastore.address(address)
        return row is None or row.state in (AddressState.FREE, AddressState.QUARANTINED)


def _pod_of_request(request: AttachRequest) -> PodId | None:
    names = request.names
    return (names.pod_namespace, names.pod_name, names.pod_uid) if names.pod_name else None
