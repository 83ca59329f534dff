"""What leads a sandbox to its branch ENI: a VLAN link on the trunk's link, a route table and rules.

Source of their form: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.kernel import checks, messages, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel as dataplane
from ipamd.model.branch import Branch, decode_link_alias
from ipamd.model.family import IpAddress, family_of
from ipamd.model.record import replace


def is_link_of(link: messages.Link, branch: Branch, address: IpAddress) -> bool:
    """Whether a link is a branch's: by the address in its alias, or by its MAC where a crash came before the alias was set."""
    found = decode_link_alias(link.alias, name=link.name, mac=link.mac)
    return found[0] == address if found else not link.alias and link.mac == branch.mac


def rules(make: Callable[..., Message], branch: Branch, *names: str) -> list[Message]:
    """Add or delete the rules by which packets that come in by links of these names go by the branch's table."""
    family = family_of(branch.gateway)
    return [make(dataplane.BRANCH_PRIORITY, table=branch.route_table, incoming=name, family=family) for name in names]


def ending(sock: NetlinkSocket, branch: Branch, *, address: IpAddress, host_veth: str) -> list[Message]:
    """Take a branch's link down, with the routes of its table, put it into the dying group, and remove its rules.

    Another's link of the same name stays, with its rule. Raises: WiringError.
    """
    link = checks.find_link(sock, branch.link)
    if link is None or not is_link_of(link, branch, address):
        return rules(messages.delete_rule, branch, host_veth)
    down = messages.change_link(link.index, step=f"take link {link.name} down", is_up=False, group=uapi.DYING_GROUP)
    return [*rules(messages.delete_rule, branch, host_veth, link.name), replace(down, tolerated=messages.ABSENT)]
