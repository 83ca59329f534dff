"""Tell people what the comparison with EC2 found: its conditions, set and cleared in one place."""

from __future__ import annotations

import logging

from ipamd.model.words import counted, first_of
from ipamd.service.health import Health
from ipamd.service.pool.sync_result import UNREADABLE, EniSyncResult

ANSWER, DIFFERENCES, LOST, MASS_LOSS = "ec2 answer", "ec2 differences", "lost addresses", "mass loss"
"""Conditions: the last answer was not believed; objects on which EC2 and the datastore contradict each other; addresses that EC2 does
not show any more; a loss that was concluded from implausible answers."""

SAID_COUNT = 5
"""Differences that a condition names. Ours: `ipamctl audit` has all."""

log = logging.getLogger(__name__)


def say_result(health: Health, outcome: EniSyncResult, *, mass_loss: str) -> None:
    """Say what people should know until the next comparison. `mass_loss`: a sentence, or an empty string."""
    if mass_loss:
        log.error("EC2's answer: %s", mass_loss)
        health.set_condition(MASS_LOSS, f"EC2's answer: {mass_loss}")
    if outcome.implausible:
        log.warning("EC2's answer is not believed: %s", outcome.implausible)
        health.set_condition(ANSWER, f"EC2's answer is not believed: {outcome.implausible}; nothing is concluded from it")
        return
    health.clear_condition(ANSWER)
    sentences = outcome.kept + [sentence for sentence in outcome.foreign if UNREADABLE in sentence]
    if sentences:
        health.set_condition(DIFFERENCES, f"EC2 and the datastore differ: {first_of(sentences, SAID_COUNT)}")
    else:
        health.clear_condition(DIFFERENCES)


def say_losses(health: Health, *, lost_count: int) -> None:
    """Say how many addresses are lost now; a mass loss is over when none is left."""
    if lost_count:
        health.set_condition(LOST, f"{counted(lost_count, 'address')} lost: EC2 does not show them; see `ipamctl audit`")
    else:
        health.clear_condition(LOST)
        health.clear_condition(MASS_LOSS)
