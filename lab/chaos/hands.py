"""Other hands in a run: each event of the plan is one change of a node's ENIs that its daemon did not make."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from math import inf
from typing import Any

from lab.chaos.expected_state import ExpectedState
from lab.chaos.history import History
from lab.chaos.observer import OURS
from lab.errors import LabError
from lab.lab import Lab
from lab.vpc.errors import Ec2Error
from lab.vpc.family import FAMILIES, IPV4, Family
from lab.vpc.family import pool_of as pool_networks
from lab.vpc.hands import NO_MANAGE
from lab.vpc.model import AttachmentStatus, Eni


class OtherHands:
    """Does what the plan says: to a used or unused object as named, to any other where there is none. Used by one thread."""

    def __init__(
        self, lab: Lab, *, expected: ExpectedState, history: History, families: Mapping[str, Family] | None = None
    ) -> None:
        """`families`: of the nodes' pools, IPv4 where none is named."""
        self._lab = lab
        self._families = dict(families or {})
        self._expected = expected
        self._book = expected.book
        self._history = history
        self._deeds: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
            "detach-used": lambda node, args: self._detach(node, args["pick"], is_used=True),
            "detach-idle": lambda node, args: self._detach(node, args["pick"], is_used=False),
            "delete": lambda node, args: self._delete(node, args["pick"]),
            "unassign-used": lambda node, args: self._unassigner(node)(node, args["pick"], is_used=True),
            "unassign-free": lambda node, args: self._unassigner(node)(node, args["pick"], is_used=False),
            "move": lambda node, args: self._move(node, args["pick"]),
            "give": lambda node, args: self._give(node, args["pick"]),
            "give-prefix": lambda node, args: self._give_prefix(node, args["pick"]),
            "attach": self._attach,
            "groups": lambda node, _: self._groups(node),
        }

    def do(self, node: str, args: Mapping[str, Any]) -> None:
        """Do one thing to a node."""
        try:
            done = self._deeds[args["what"]](node, args)
        except (Ec2Error, LabError) as refusal:
            self._history.note(f"hands {args['what']}: refused", node=node, error=str(refusal))
            return
        if not done:
            self._history.note(f"hands {args['what']}: nothing to do it to", node=node)
            return
        self._history.say(f"hands {args['what']}: {done}", node=node, counted=f"fault hands {args['what']}")

    def _detach(self, node: str, pick: float, *, is_used: bool) -> str:
        ours = self._ours(node)
        enis = [eni for eni in ours if bool(self._used(node) & set(pool_of(eni))) == is_used] or ours
        if not enis:
            return ""
        eni = _picked(enis, pick)
        with self._taking(node, pool_of(eni), cuts_link=True):
            self._book.detached(eni.eni_id)
            self._lab.vpc.hands.detach(eni.eni_id)
        return f"{eni.eni_id} with {', '.join(pool_of(eni))}"

    def _delete(self, node: str, pick: float) -> str:
        enis = self._ours(node)
        if not enis:
            return ""
        eni = _picked(enis, pick)
        with self._taking(node, pool_of(eni), cuts_link=True):
            self._lab.vpc.hands.delete(eni.eni_id)
        return f"{eni.eni_id} with {', '.join(pool_of(eni))}"

    def _unassigner(self, node: str) -> Callable[..., str]:
        return self._unassign if self._family(node) is IPV4 else self._unassign_prefix

    def _unassign_prefix(self, node: str, pick: float, *, is_used: bool) -> str:
        """Take a /80 with every address in it; an unused one only if the node has another."""
        used = [IPv6Address(address) for address in self._used(node)]
        every = [(eni, prefix) for eni in self._attached(node) for prefix in eni.ipv6_prefixes]
        found = [(eni, prefix) for eni, prefix in every if any(one in prefix for one in used) == is_used]
        if not found or not (is_used or len(every) > 1):
            return ""
        eni, prefix = _picked(found, pick)
        with self._taking(node, [str(prefix)], cuts_link=False):
            self._lab.vpc.hands.unassign_ipv6(eni.eni_id, prefix)
        return f"{prefix} from {eni.eni_id}"

    def _unassign(self, node: str, pick: float, *, is_used: bool) -> str:
        address = self._address(node, pick, is_used=is_used)
        if address is None:
            return ""
        with self._taking(node, self._with_its_prefix(address), cuts_link=False):
            eni = self._lab.vpc.hands.unassign(address)
        return f"{address} from {eni.eni_id}"

    def _move(self, node: str, pick: float) -> str:
        """Give a used address to an ENI of the other node: the worst that can happen to it."""
        address = self._address(node, pick, is_used=True, singles_only=True)
        alike = [name for name in self._lab.nodes if name != node and self._family(name) is self._family(node)]
        others = [eni for name in alike for eni in self._attached(name)]
        if address is None or not others:
            return ""
        target = _picked(others, pick)
        with self._taking(node, [str(address)], cuts_link=False):
            self._lab.vpc.hands.assign(target.eni_id, address=address)
        return f"{address} to {target.eni_id}"

    def _give(self, node: str, pick: float) -> str:
        attached = self._attached(node)
        if not attached:
            return ""
        return self._given(_picked(attached, pick), node, prefix_count=0)

    def _give_prefix(self, node: str, pick: float) -> str:
        attached = self._attached(node)
        if not attached:
            return ""
        return self._given(_picked(attached, pick), node, prefix_count=1)

    def _given(self, eni: Eni, node: str, *, prefix_count: int) -> str:
        hands = self._lab.vpc.hands
        assign = hands.assign if self._family(node) is IPV4 else hands.assign_ipv6
        after = assign(eni.eni_id, prefix_count=prefix_count)
        new = {*after.all_addresses, *after.all_prefixes} - {*eni.all_addresses, *eni.all_prefixes}
        return f"{', '.join(map(str, new))} to {eni.eni_id}"

    def _attach(self, node: str, args: Mapping[str, Any]) -> str:
        tags = NO_MANAGE if args["tagged"] else {}
        eni = self._lab.vpc.hands.attach(self._lab.node(node).instance_id, kind=args["type"], tags=tags)
        if eni.attachment is not None:  # a branch hangs on its trunk, not on the node
            self._book.brought(eni.eni_id, node)
        return f"{eni.eni_id} ({args['type']})"

    def _groups(self, node: str) -> str:
        group = self._lab.vpc.add_security_group("changed by hand")
        primary = self._lab.vpc.enis_of(self._lab.node(node).instance_id)[0]
        self._lab.vpc.hands.change_groups(primary.eni_id, (group,))
        return f"{group} on {primary.eni_id}"

    @contextmanager
    def _taking(self, node: str, addresses: Iterable[str], *, cuts_link: bool) -> Iterator[None]:
        """Note it before it is done, so that nobody sees the deed before the note; take the note back if it is refused.

        A link goes when the lab has taken it, which on a busy machine takes seconds: only then can the daemon know.
        """
        taken = tuple(addresses)
        enis = self._lab.vpc.enis_of(self._lab.node(node).instance_id)
        age_s = self._age_s({eni.eni_id for eni in enis}, taken)
        take = partial(self._book.took, node, taken, cuts_link=cuts_link, eni_count=len(enis), age_s=age_s)
        noted = take(at_s=self._history.now())
        try:
            yield
        except (Ec2Error, LabError):
            self._book.gave_back(node, noted)
            raise
        if cuts_link:
            with suppress(LabError):
                self._lab.settle()
            take(at_s=self._history.now())

    def _age_s(self, eni_ids: Container[str], addresses: Iterable[str]) -> float:
        """Seconds since the youngest of these addresses came to one of these ENIs, inf if nobody knows when."""
        came = [
            change.at
            for change in self._lab.vpc.changes()
            if change.eni_id in eni_ids and not _on(change.after).isdisjoint(set(addresses) - _on(change.before))
        ]
        return self._lab.vpc.clock() - max(came) if came else inf

    def _attached(self, node: str) -> list[Eni]:
        """ENIs of a node that the daemon uses, its first one included."""
        foreign = self._book.foreign()
        enis = self._lab.vpc.enis_of(self._lab.node(node).instance_id)
        bound = [eni for eni in enis if eni.attachment and eni.attachment.status is AttachmentStatus.ATTACHED]
        return [eni for eni in bound if eni.eni_id not in foreign]

    def _ours(self, node: str) -> list[Eni]:
        return [eni for eni in self._attached(node) if eni.description.startswith(OURS)]

    def _family(self, node: str) -> Family:
        return self._families.get(node, IPV4)

    def _used(self, node: str) -> set[str]:
        return {record.address for record in self._expected.wanted(node)}

    def _address(self, node: str, pick: float, *, is_used: bool, singles_only: bool = False) -> IPv4Address | None:
        used = self._used(node)
        every = [
            address
            for eni in self._attached(node)
            for address in (map(str, eni.secondary_addresses) if singles_only else pool_of(eni))
        ]
        found = [address for address in every if (address in used) == is_used] or every
        return IPv4Address(_picked(found, pick)) if found else None

    def _with_its_prefix(self, address: IPv4Address) -> list[str]:
        prefixes = [prefix for eni in self._lab.vpc.enis() for prefix in eni.prefixes if address in prefix]
        return [str(one) for prefix in prefixes for one in prefix] or [str(address)]


def pool_of(eni: Eni, family: Family = IPV4) -> list[str]:
    """What of an ENI is for sandboxes: in IPv4 all addresses but the primary, those of prefixes one by one; in IPv6 its /80s."""
    return [str(one) for network in pool_networks(eni, family) for one in (network if family is IPV4 else [network])]


def _on(eni: Eni | None) -> set[str]:
    return {address for family in FAMILIES for address in pool_of(eni, family)} if eni else set()


def _picked(choices: list[Any], pick: float) -> Any:
    return choices[int(pick * len(choices))]
