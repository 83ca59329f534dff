"""Find the links of all legs of a sandbox that still exist on the host. Pure."""

from __future__ import annotations

from ipamd.model.attachment import Attachment
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs import legs_of


def present_links(attachment: Attachment, survey: KernelSurvey) -> frozenset[str]:
    """Return the names of a sandbox's links on the host, even of links that are being deleted. They are found by name or by alias."""
    names = {name for leg in legs_of(attachment.wiring) for name in leg.links}
    links = {veth.name for veth in survey.host_veths if veth.key == attachment.key or veth.name in names}
    if not attachment.is_of_pool:
        links |= {link.name for link in survey.vlans if link.name in names or link.address == attachment.address}
    return frozenset(links)
