"""What a comparison with EC2 found and changed, as one value for callers, the start-up stage and people."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipamd.model.ids import EniId
from ipamd.model.recorded import CloudKey
from ipamd.model.words import counted

UNREADABLE = "cannot be read"
"""In a sentence about an ENI whose entry is malformed."""


@dataclass(slots=True)
class EniSyncResult:
    """What one comparison with EC2 changed, counted; shown as the detail of its stage.

    `eni_count`: ENIs that the answer shows attached; `adopted`: those of them that were not recorded before. `removed_count`:
    addresses forgotten; `lost_count`: addresses found absent now, the forgotten ones included; `healed_count`: lost ones that EC2
    shows again. `lost_eni_count`: ENIs found absent now. `forced_count`, `forced_eni_count`: those of the lost addresses and ENIs that
    a sandbox had. `kept`: one sentence per object that was left as it was; `foreign`: one per attached ENI that has no IPv4 address
    or could not be read. `implausible`: why the answer was not believed, "" if it was; then nothing was added. `pending`: something
    is in doubt: look again after `again_s`; `doubted`: the ENIs and addresses that were not shown once.
    """

    eni_count: int = 0
    adopted: list[EniId] = field(default_factory=list)
    added_count: int = 0
    removed_count: int = 0
    lost_count: int = 0
    healed_count: int = 0
    lost_eni_count: int = 0
    forced_count: int = 0
    forced_eni_count: int = 0
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    implausible: str = ""
    again_s: float | None = None
    doubted: frozenset[CloudKey] = frozenset()

    @property
    def pending(self) -> bool:
        """Whether something is in doubt until a next look."""
        return self.again_s is not None

    def keep(self, sentence: str) -> None:
        """Report something that was left as it is; a repeated sentence counts once."""
        if sentence not in self.kept:
            self.kept.append(sentence)

    def look_again(self, after_s: float | None) -> None:
        """Ask for another look, the earliest that anybody asked for."""
        if after_s is not None:
            self.again_s = after_s if self.again_s is None else min(self.again_s, after_s)

    def __str__(self) -> str:
        text = f"{counted(self.eni_count, 'ENI')}, {counted(self.added_count, 'address')} added, {self.removed_count} forgotten"
        if self.implausible:
            text = f"EC2's answer is not believed: {self.implausible}"
        if self.lost_count > self.removed_count:
            text += f", {self.lost_count - self.removed_count} lost"
        if self.healed_count:
            text += f", {self.healed_count} shown again"
        if self.kept:
            text += f"; kept: {'; '.join(self.kept)}"
        return f"{text}; left alone: {'; '.join(self.foreign)}" if self.foreign else text
