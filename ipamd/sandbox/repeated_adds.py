"""Bound the addresses of a pod whose sandboxes fail again and again, so that the pod does not use up the node's addresses.

If the sandboxes of a pod fail after our ADD, kubelet makes a new one every few seconds. If the DEL of a failed sandbox comes, the
sandbox's address cools. If no DEL comes, because a plugin after ours in the chain fails (containerd issue 12130), the sandbox stays
recorded until the reaper has proved that it is gone. So a pod may have at most EARLIER_MAX such sandboxes; the pool does not grow to
replace the addresses of earlier sandboxes; and each ADD of such a pod requests a list of the runtime.

The pod's name comes from the runtime (CNI_ARGS). It decides which ADD is refused and how far the pool grows, and never which address
is freed (docs/adr/0001): a newer sandbox of a pod is no evidence about an older one (I2).
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
"""A pod with this many recorded sandboxes gets no further one. Ours: kubelet begins a new sandbox every 11 s, after the one before it
has failed, and the reaper removes failed sandboxes at least as fast. So two are recorded only until one of them is removed."""

NAMED_MAX = 3
"""The largest number of pods that a refusal names. Ours: few, because a refusal is one line."""

ID_SHOWN = 13
"""The number of characters at the beginning of a container ID that a refusal shows: as many as `crictl pods` shows."""


class RepeatedAdds:
    """Counts the earlier sandboxes of each pod, and refuses a further sandbox if there are too many. Safe from any thread."""

    def __init__(self, datastore: Datastore, *, has_reaper: bool) -> None:
        """`has_reaper`: whether sandboxes that ended without a DEL are found and reaped.

        Without a reaper no ADD is refused: the row of a sandbox that ended without a DEL would stay for ever, and its pod would be
        refused for ever.
        """
        self._datastore = datastore
        self._has_reaper = has_reaper
        self._last_pods = LastPods(self._is_free)
        for attachment in datastore.attachments():
            self._last_pods.record_taken(attachment.address, pod_of(attachment))

    def is_repeat(self, request: AttachRequest) -> bool:
        """Whether an earlier sandbox of the pod is recorded, or an address of such a sandbox is cooling."""
        pod = _pod_of_request(request)
        return pod is not None and (
            self._earlier(request, pod) != () or self._cooling_count(self._last_pods.addresses_of(pod)) > 0
        )

    def require_few(self, request: AttachRequest) -> bool:
        """Require that fewer than EARLIER_MAX other sandboxes of the pod are recorded.

        Returns: whether any other sandbox of the pod is recorded. Raises: UndeletedSandboxesError.
        """
        pod = _pod_of_request(request)
        earlier = () if pod is None else self._earlier(request, pod)
        if len(earlier) >= EARLIER_MAX and self._has_reaper:
            names = ", ".join(name[:ID_SHOWN] for name in earlier)
            raise refusal(
                RefusalCode.TOO_MANY_SANDBOXES,
                pod=request.names.pod,
                count=counted(len(earlier), "sandbox"),
                sandboxes=names,
                step=UNDELETED_STEP,
            )
        return bool(earlier)

    def record_taken(self, request: AttachRequest, address: IpAddress) -> None:
        """Remember which pod has got an address of the pool."""
        self._last_pods.record_taken(address, _pod_of_request(request))

    def repeats(self) -> Repeats:
        """Count the addresses of the earlier sandboxes of all pods, recorded or cooling. The cost grows with the number of pods.

        A pod that got only one address is left out, because it has no earlier sandbox with another address.
        """
        recorded = self._datastore.repeated_pods()
        cooling: Counter[PodId] = Counter()
        for pod, addresses in self._last_pods.of_pods_with_several().items():
            cooling[pod] = self._cooling_count(addresses)
            recorded[pod] = len(self._datastore.sandboxes_of(pod))
        return repeats(recorded, cooling)

    def shortage(self, request: AttachRequest, *, cause: Cause) -> IpamError | None:
        """Return the refusal of an ADD if no address is free because earlier sandboxes of pods still have addresses; else None.

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
        """Count the addresses of a list that are cooling."""
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
