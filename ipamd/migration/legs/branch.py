"""Take over sandboxes with branch ENIs: the host veth, and the VLAN link by which its packets leave."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.migration.legs.leg import ImportPass, Takeover
from ipamd.model.attachment import POD_IFNAME
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import log_text
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey, IfName
from ipamd.model.kernel import HostVeth
from ipamd.model.legs.aws_node_uplinks import BranchPath, find_branch_path, identify_branch
from ipamd.model.sandbox import Sandbox
from ipamd.ports.leg_adoption import LegAdoption
from ipamd.ports.pod_facts import PodFactsSource

log = logging.getLogger(__name__)

FACTS_S = 2.0
"""Longest wait, in seconds, for one answer about a pod. Ours: the same as in an ADD."""


class BranchImport:
    """Takes over sandboxes with branch ENIs. See `FirstLegImport`."""

    def __init__(
        self,
        adoption: LegAdoption,
        *,
        is_on: bool,
        pod_facts: PodFactsSource | None,
        prefix: str,
        failpoint: Callable[[str], None],
    ) -> None:
        """Keep the collaborators.

        Args:
            is_on: whether the settings allow pods with branch ENIs.
            pod_facts: the source of a pod's annotation if the runtime does not pass it on; None if there is no such source.
            prefix: the beginning of the names that amazon-vpc-cni-k8s gives to host veths.
        """
        self._adoption = adoption
        self._is_on = is_on
        self._pod_facts = pod_facts
        self._prefix = prefix
        self._failpoint = failpoint

    def take_over(self, veth: HostVeth, addresses: tuple[IpAddress, ...], import_pass: ImportPass) -> Takeover | None:
        """See `FirstLegImport`.

        A veth is taken over only if the kernel shows for certain by which VLAN link its packets leave.
        """
        path = find_branch_path(veth, import_pass.survey)
        if isinstance(path, BranchPath):
            return Takeover((path.address,), self._take_over(veth, path, import_pass))
        if path:
            return Takeover(addresses, path)
        return None

    def _take_over(self, veth: HostVeth, path: BranchPath, import_pass: ImportPass) -> str:
        """Write our aliases on one veth and its VLAN link. Returns: why they were not written, "" if they were."""
        if not self._is_on:
            return f"its pod has a branch ENI, by {path.link.name}: set ENABLE_POD_ENI=true, or delete the pod"
        identified = identify_branch(veth.name, path, listed=import_pass.listed, annotation=self._annotation, prefix=self._prefix)
        if isinstance(identified, str):
            return identified
        key, eni_id = identified
        try:
            first, uplink = self._adoption.stamp_uplinked(
                veth, path.link, key=key, address=path.address, uplink=path.branch, eni_id=eni_id
            )
        except Exception as error:  # noqa: BLE001  # top of the work on one veth: other veths must not wait for it
            return log_text(error)
        import_pass.firsts[veth.name], import_pass.uplinks[path.link.name] = first, uplink
        self._failpoint("import.stamped")
        log.info("imported veth=%s address=%s sandbox=%s eni=%s link=%s", veth.name, path.address, key, eni_id, path.link.name)
        return ""

    def _annotation(self, sandbox: Sandbox) -> str:
        """Return the branch annotation of a pod. It is the annotation that the runtime has passed on with the sandbox, or, if there is
        none, the present annotation from `pod_facts`.
        """
        if sandbox.eni_annotation or self._pod_facts is None:
            return sandbox.eni_annotation
        key = AttachmentKey(sandbox.container_id, IfName(POD_IFNAME))
        names = SandboxNames(sandbox.pod_namespace, sandbox.pod_name, sandbox.pod_uid)
        return self._pod_facts.facts(AttachRequest(key, "", "", "", "", names), timeout_s=FACTS_S).annotation
