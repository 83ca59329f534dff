"""amazon-vpc-cni-k8s on a node, as values; it outlives a crash of ours."""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.model.aws_node import Allocation
from ipamd.model.errors import ForeignStateError

THEIRS, SAVED, OURS = "10-aws.conflist", "10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"


class FakeAwsNode:
    """Implements `AwsNode`. `told`: what its file says; `listens`: where its daemon does; `refusal`: why its file cannot be used."""

    def __init__(self) -> None:
        self.told: list[Allocation] | None = None
        self.refusal: ForeignStateError | None = None
        self.listens = ""
        self.written: list[list[Allocation]] = []
        self.conflists: set[str] = set()
        self.owned: list[str] = []
        self._is_news = True
        self._is_exporting = False

    def tell(self, *allocations: Allocation) -> None:
        """Its daemon writes its file."""
        self.told, self._is_news = list(allocations), True

    def listener(self) -> str:
        """See the port."""
        return self.listens

    def own_socket(self, path: str) -> None:
        """See the port."""
        self.owned.append(path)

    def allocations(self) -> tuple[Allocation, ...]:
        """See the port."""
        if self.refusal is not None:
            raise self.refusal
        return tuple(self.told or ())

    def has_run_since(self) -> bool:
        """See the port."""
        return self.told is not None and self._is_news

    def settle(self) -> None:
        """See the port."""
        if self.told is not None:
            self._is_news = self._is_exporting = False

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

    def write(self, allocations: Iterable[Allocation]) -> str:
        """See the port; every content is kept in `written`."""
        self.told = list(allocations)
        self.written.append(self.told)
        self._is_news = False
        return "/ipam.json"

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
