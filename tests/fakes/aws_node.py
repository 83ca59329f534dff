"""amazon-vpc-cni-k8s on a node, as values; it outlives a crash of ours."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from ipamd.model.aws_node import Allocation, DaemonSign
from ipamd.model.errors import ForeignStateError
from ipamd.model.family import Family, IpAddress, family_of
from tests.fakes.clock import FakeClock

THEIRS, SAVED, OURS = "10-aws.conflist", "10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"


class FakeAwsNode:
    """Implements `AwsNode`. `told`: what its file says; `listens`: where its daemon does; `refusal`: why its file cannot be used."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self._seen: DaemonSign | None = None
        self._seen_s = self._written_s = 0.0
        self.told: list[Allocation] | None = None
        self.egress_told: dict[str, IpAddress] = {}
        self.refusal: ForeignStateError | None = None
        self.listens = ""
        self.written: list[list[Allocation]] = []
        self.conflists: set[str] = set()
        self.routed: Container[IpAddress] = ()
        self._is_news = True
        self._is_exporting = False

    def tell(self, *allocations: Allocation) -> None:
        """Its daemon writes its file."""
        self.told, self._is_news, self._written_s = list(allocations), True, self.clock.monotonic()

    def listener(self) -> str:
        """See the port."""
        return self.listens

    def last_sign(self, *, pod: str = "") -> DaemonSign | None:
        """See the port."""
        now_s = self.clock.monotonic()
        if lasting := f"it serves {self.listens}" if self.listens else f"its pod {pod} runs" if pod else "":
            self._seen, self._seen_s = DaemonSign(lasting), now_s
        elif self.has_run_since() and self._written_s > self._seen_s:
            self._seen, self._seen_s = DaemonSign("it wrote /ipam.json"), self._written_s
        return self._seen if self._seen is None else DaemonSign(self._seen.text, now_s - self._seen_s)

    def allocations(self) -> tuple[Allocation, ...]:
        """See the port."""
        if self.refusal is not None:
            raise self.refusal
        return tuple(self.told or ())

    def has_run_since(self) -> bool:
        """See the port."""
        return self.told is not None and self._is_news

    def finish(self) -> None:
        """See the port."""
        if self.told is not None:
            self._is_news = False

    @property
    def is_exporting(self) -> bool:
        """See the port."""
        return self._is_exporting

    def begin_export(self) -> None:
        """See the port."""
        self._is_exporting = True

    def end_export(self) -> None:
        """See the port."""
        self._is_exporting = False

    def extra_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        """See the port."""
        return {name: one for name, one in self.egress_told.items() if family_of(one) == family}

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        """See the port; every content is kept in `written`."""
        self.routed, allocations = routed, tuple(allocations)
        self.told = [replace(one, other_address=None) for one in allocations]
        self.written.append(list(allocations))
        self._is_news = False
        return "/ipam.json"

    def network_name(self) -> str:
        """See the port."""
        return "aws-cni"

    def has_conflist(self) -> bool:
        """See the port."""
        return THEIRS in self.conflists

    def save_conflist(self) -> str:
        """See the port."""
        return self._rename(THEIRS, SAVED)

    def restore_conflist(self) -> str:
        """See the port."""
        return "" if self.has_conflist() else self._rename(SAVED, THEIRS)

    def remove_our_conflist(self) -> str:
        """See the port."""
        if OURS not in self.conflists:
            return ""
        self.conflists.remove(OURS)
        return f"{OURS} was removed"

    def _rename(self, source: str, target: str) -> str:
        if source not in self.conflists:
            return ""
        self.conflists = self.conflists - {source} | {target}
        return f"{source} was renamed to {target}"
