"""Choose how the connections of a new sandbox to outside the VPC are translated (docs/adr/0082). Pure.

The pod's annotation chooses, if a setting allows the annotation in the pod's namespace. Without an annotation the lists in the
settings choose. If the pod is in neither list, nothing is chosen, and the node's default applies. The namespace comes from CNI_ARGS,
which the runtime writes, and never from an annotation, which the pod's author writes. If an annotation is not allowed or cannot be
followed, the ADD is refused: if the pod ran with another source address than it asked for, only its peers would notice.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from ipamd.model.attachment import POD_IFNAME, Attachment
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.pod_annotations import SNAT
from ipamd.model.pod_snat import PodSnat
from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal

CHOICES = ", ".join(PodSnat)

LISTS = {PodSnat.NONE: "VPC_IPAMD_SNAT_EXEMPT_PODS", PodSnat.FORCE: "VPC_IPAMD_SNAT_FORCED_PODS"}
"""The setting whose list makes each choice."""

OF_IPV6 = "pods of IPv6 are never translated"

OF_UPLINK = "packets of a pod with security groups of its own leave by its branch ENI"


@dataclass(frozen=True, slots=True)
class PodSnatChoice:
    """Decides how the connections of a pod are translated, by these settings.

    `annotated_namespaces`: the namespaces whose pods may choose by the annotation. If there are none, the annotation is not read.
    `exempt`: pods whose connections are never translated, as namespaces, and as CIDRs of the pods' addresses.
    `forced`: pods whose connections are always translated, also as namespaces and as CIDRs of addresses.
    `family`: the address family of the pool. Only IPv4 is translated.
    """

    annotated_namespaces: tuple[str, ...] = ()
    exempt: tuple[str | IPv4Network, ...] = ()
    forced: tuple[str | IPv4Network, ...] = ()
    family: Family = IPV4

    def by_annotation(self, request: AttachRequest) -> PodSnat | None:
        """Return the choice in the pod's annotation, None without an annotation.

        Raises: SnatAnnotationError if the annotation is not allowed or has an unknown value, or for a pod of IPv6.
        """
        value = self._annotation_of(request)
        if value is None:
            return None
        namespace = request.names.pod_namespace
        if namespace not in self.annotated_namespaces:
            raise _refused(RefusalCode.SNAT_NOT_ALLOWED, request, value=value[:40], namespace=namespace or "(unknown)")
        if value not in tuple(PodSnat):
            raise _refused(RefusalCode.SNAT_VALUE_UNKNOWN, request, value=value[:40], choices=CHOICES)
        if self.family is not IPV4:
            raise _refused(RefusalCode.SNAT_NOT_APPLICABLE, request, value=value, cause=OF_IPV6)
        return PodSnat(value)

    def _annotation_of(self, request: AttachRequest) -> str | None:
        """Return the value of the pod's annotation; None if it has none, or if annotations are not read.

        Raises: SnatAnnotationError if the runtime handed over no annotations of a pod that may choose.
        """
        if not self.annotated_namespaces or request.is_wired_by_caller:
            return None
        if request.annotations is not None:
            return request.annotations.get(SNAT)
        # The network of a further interface has a configuration of its own, which need not request annotations.
        is_expected = request.names.pod_namespace in self.annotated_namespaces and request.key.ifname == POD_IFNAME
        if is_expected:
            raise _refused(RefusalCode.SNAT_ANNOTATION_UNKNOWN, request)
        return None

    def by_settings(self, request: AttachRequest, address: IpAddress) -> PodSnat | None:
        """Return the choice of the list that names the pod's namespace, else of the list that has a CIDR with the pod's address.

        Returns: None if the pod is in neither list. Nothing is chosen for a sandbox that amazon-vpc-cni-k8s wires, nor for IPv6.
        """
        if request.is_wired_by_caller:
            return None
        return self.by_lists(request.names.pod_namespace, address)

    def by_lists(self, namespace: str, address: IpAddress) -> PodSnat | None:
        """Return the choice of the lists as `by_settings` does, for a pod with this namespace and address."""
        has_lists = self.exempt or self.forced
        if not has_lists or self.family is not IPV4:
            return None
        lists = ((PodSnat.NONE, self.exempt), (PodSnat.FORCE, self.forced))
        for choice, subjects in lists:
            if namespace in subjects:
                return choice
        for choice, subjects in lists:
            if _has_address(subjects, address):
                return choice
        return None

    def outdated_setting(self, attachment: Attachment) -> str:
        """Return the list that would choose otherwise for this sandbox now, because the sandbox was added before a change of the list.

        Returns: "" if there is none, and for a sandbox that an annotation may have chosen for, because the record has no annotation.
        """
        if not attachment.is_of_pool or self.family is not IPV4:
            return ""
        present = self.by_lists(attachment.pod_namespace, attachment.address)
        is_by_annotation = attachment.snat is not None and attachment.pod_namespace in self.annotated_namespaces
        if present == attachment.snat or is_by_annotation:
            return ""
        return LISTS[present or attachment.snat or PodSnat.NONE]

    def chooser_of(self, attachment: Attachment) -> str:
        """Name what chose the translation of this sandbox: the pod's annotation, a list in the settings, or both."""
        by_annotation = f"its annotation {SNAT}"
        if attachment.snat is None:
            return "nothing"
        by_list = LISTS[attachment.snat]
        if attachment.pod_namespace not in self.annotated_namespaces:
            if self.outdated_setting(attachment):
                return f"{by_annotation} or {by_list}, as they were at its ADD,"
            return by_list
        if self.by_lists(attachment.pod_namespace, attachment.address) == attachment.snat:
            return f"{by_annotation} or {by_list}"
        return by_annotation

    def refuse_for_uplink(self, request: AttachRequest) -> None:
        """Refuse a pod that has an ENI of its own and chooses its translation by annotation. Raises: SnatAnnotationError."""
        choice = self.by_annotation(request)
        if choice is not None:
            raise _refused(RefusalCode.SNAT_NOT_APPLICABLE, request, value=choice, cause=OF_UPLINK)


def _has_address(subjects: tuple[str | IPv4Network, ...], address: IpAddress) -> bool:
    return any(isinstance(subject, IPv4Network) and address in subject for subject in subjects)


def _refused(code: RefusalCode, request: AttachRequest, **fields: object) -> IpamError:
    return refusal(code, pod=request.names.pod or f"sandbox {request.key}", annotation=SNAT, **fields)
