"""Choose the pool of a new sandbox's address (docs/adr/0084). Pure.

The pod's annotation chooses the pool, if a setting allows that pool to the pod's namespace. Without an annotation the settings choose
by namespace, and for other namespaces the address comes from the node's own pool. The namespace is that of CNI_ARGS, which the runtime
writes, and never of an annotation, which the pod's author writes. If an annotation is not allowed or cannot be followed, the ADD is
refused: if the pod ran in another subnet, or with other security groups, than it asked for, only its peers would notice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError
from ipamd.model.pod_annotations import POOL
from ipamd.model.pod_pools import OWN
from ipamd.model.refusals import RefusalCode, refusal

OF_UPLINK = "the pod has an ENI of its own, with its security groups, and no address of a pool"

SHOWN_MAX = 40
"""The largest number of characters of an annotation that a refusal shows. Ours: enough to recognise a wrong value."""


class PodPoolChoice:
    """Decides from which pool a pod gets its address, according to the pod's namespace and, where that is allowed, its annotation."""

    def __init__(self, by_namespace: Iterable[str] = (), annotated: Iterable[str] = ()) -> None:
        """Keep the settings. If both are empty, every pod gets an address of the node's own pool.

        Args:
            by_namespace: the pool of each namespace's pods, as NAMESPACE=POOL.
            annotated: the pools that the pods of a namespace may choose by the annotation, each as NAMESPACE=POOL.
        """
        self._by_namespace: Mapping[str, str] = dict(_pair(choice) for choice in by_namespace)
        allowed: dict[str, list[str]] = {}
        for namespace, pool in map(_pair, annotated):
            allowed.setdefault(namespace, []).append(pool)
        self._allowed: Mapping[str, Collection[str]] = allowed

    @property
    def is_on(self) -> bool:
        """Whether a pod may have another pool than the node's own."""
        return bool(self._by_namespace or self._allowed)

    def of(self, request: AttachRequest) -> str:
        """Return the pool of a pod, "" for the node's own. Raises: PoolAnnotationError."""
        if not self.is_on:
            return OWN
        chosen = self._by_annotation(request)
        if chosen is None:
            return self._by_namespace.get(request.names.pod_namespace, OWN)
        return chosen

    def refuse_for_uplink(self, request: AttachRequest) -> None:
        """Refuse a pod that has an ENI of its own and chooses a pool by its annotation. Raises: PoolAnnotationError."""
        chosen = self._by_annotation(request)
        if chosen is not None:
            raise _refused(RefusalCode.POOL_NOT_APPLICABLE, request, value=chosen, cause=OF_UPLINK)

    def _by_annotation(self, request: AttachRequest) -> str | None:
        """Return the pool that the pod's annotation names; None if it has none, or if annotations are not read.

        Raises: PoolAnnotationError if the pool is not allowed, or if the runtime handed over no annotations of a pod that may choose.
        """
        if not self._allowed or request.is_wired_by_caller:
            return None
        namespace = request.names.pod_namespace
        allowed = self._allowed.get(namespace, ())
        if request.annotations is None:
            # The network of a further interface has a configuration of its own, which need not request annotations.
            if allowed and request.key.ifname == POD_IFNAME:
                raise _refused(RefusalCode.POOL_ANNOTATION_UNKNOWN, request)
            return None
        value = request.annotations.get(POOL)
        if value is None or value in allowed:
            return value
        choices = ", ".join(allowed) or "none"
        raise _refused(
            RefusalCode.POOL_NOT_ALLOWED, request, value=value[:SHOWN_MAX], namespace=namespace or "(unknown)", choices=choices
        )


def _pair(choice: str) -> tuple[str, str]:
    namespace, _, pool = choice.partition("=")
    return namespace, pool


def _refused(code: RefusalCode, request: AttachRequest, **fields: object) -> IpamError:
    return refusal(code, pod=request.names.pod or f"sandbox {request.key}", annotation=POOL, **fields)
