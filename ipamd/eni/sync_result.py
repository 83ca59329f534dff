"""What a comparison with EC2 found and changed, as one value for callers, the start-up stage and people."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipamd.core.health import Health
from ipamd.model.ids import EniId
from ipamd.model.metadata_evidence import CloudKey
from ipamd.model.words import counted, first_of

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


# Tell people what the comparison with EC2 found: its conditions, set and cleared in one place.


ANSWER, DIFFERENCES, LOST, MASS_LOSS = "ec2 answer", "ec2 differences", "lost addresses", "mass loss"
"""Conditions: the last answer was not believed; objects on which EC2 and the datastore contradict each other; addresses that EC2 does
not show any more; a loss that was concluded from implausible answers."""

SAID_COUNT = 5
"""Differences that a condition names. Ours: `ipamctl audit` has all."""


def say_result(health: Health, outcome: EniSyncResult, *, mass_loss: str) -> None:
    """Say what people should know until the next comparison. `mass_loss`: a sentence, or an empty string."""
    if mass_loss:
        health.report(MASS_LOSS, f"EC2's answer: {mass_loss}")
    why = outcome.implausible
    health.report(ANSWER, f"EC2's answer is not believed: {why}; nothing is concluded from it" if why else "")
    if not why:
        sentences = outcome.kept + [sentence for sentence in outcome.foreign if UNREADABLE in sentence]
        health.report(DIFFERENCES, f"EC2 and the datastore differ: {first_of(sentences, SAID_COUNT)}" if sentences else "")


def say_losses(health: Health, *, lost_count: int) -> None:
    """Say how many addresses are lost now; a mass loss is over when none is left."""
    lost = f"{counted(lost_count, 'address')} lost: EC2 does not show them; see `ipamctl audit`"
    health.report(LOST, lost if lost_count else "")
    if not lost_count:
        health.report(MASS_LOSS, "")
