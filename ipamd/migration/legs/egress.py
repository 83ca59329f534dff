"""Take over the legs by which sandboxes have egress in the IP family that is not the pool's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from ipamd.migration.legs.leg import ImportPass
from ipamd.model.attachment import Attachment
from ipamd.model.errors import IpamError, log_text
from ipamd.model.family import Family
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth
from ipamd.model.legs.aws_node_extra import egress_chain
from ipamd.ports.aws_node import AwsNode
from ipamd.ports.leg_adoption import LegAdoption

log = logging.getLogger(__name__)

FAILPOINTS = ("import.second",)


class EgressImport:
    """Takes over legs for egress. See `ExtraLegImport`."""

    def __init__(self, adoption: LegAdoption, aws_node: AwsNode, *, family: Family, failpoint: Callable[[str], None]) -> None:
        """`family`: the address family that is not the pool's. Its legs are taken over even if our settings turn egress off, because
        the plugin of amazon-vpc-cni-k8s may have assigned addresses of this family.
        """
        self._adoption = adoption
        self._aws_node = aws_node
        self._family = family
        self._failpoint = failpoint
        self._links: dict[str, int] = {}

    def find_legs(self, foreign: Collection[HostVeth]) -> None:
        """See `ExtraLegImport`.

        If the links cannot be read, no sandbox of these veths is taken over in this pass, but in a later one.
        """
        try:
            self._links = dict(self._adoption.extra_links(foreign, family=self._family))
        except IpamError as error:
            log.warning("links for egress are taken over later error=%s", log_text(error))
            self._links = dict.fromkeys((veth.name for veth in foreign), 0)

    def take_over(self, first: HostVeth, key: AttachmentKey, import_pass: ImportPass) -> None:
        """See `ExtraLegImport`."""
        index = self._links.get(first.name)
        if index is None:
            return
        address = self._aws_node.extra_addresses(self._family).get(key.container_id)
        veth = self._adoption.adopt_extra(index, first=first, key=key, family=self._family, recorded_address=address)
        import_pass.extra.append(veth)
        self._failpoint("import.second")

    def left_chains(self, attachments: Iterable[Attachment]) -> list[str]:
        """See `ExtraLegImport`. One rule of ours replaces the chains of all sandboxes with an address for egress."""
        network_name = self._aws_node.network_name()
        ours = [attachment.key.container_id for attachment in attachments if attachment.other_address is not None]
        return [egress_chain(network_name, container_id, family=self._family) for container_id in ours]
