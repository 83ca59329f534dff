"""One change of the host's routing that brings it to what it should be."""

from __future__ import annotations

from typing import Any, NamedTuple

from ipamd.kernel import answers, messages
from ipamd.kernel.netlink import Message
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport


class Repair(NamedTuple):
    """A change to make.

    `code`, `target`, `before`, `after`: of the report once it is made. `sysctl`: a key below /proc/sys and its value, to be set before
    `change` is sent.
    """

    kind: RepairKind
    code: RepairCode
    target: str
    change: Message | None = None
    before: str = ""
    after: str = ""
    sysctl: tuple[str, str] | None = None

    def report(self, subject: str) -> RepairReport:
        """Return the report of the repair. `subject`: the ENI, or NODE."""
        return RepairReport(self.code, RepairedObject(self.kind, subject), self.target, before=self.before, after=self.after)


def route_removal(route: answers.Route, step: str) -> Message:
    """Return the message that deletes exactly this route. `step`: names the message in errors."""
    return messages.delete_route(
        route.destination,
        length=route.length,
        index=route.index,
        table=route.table,
        metric=route.metric,
        step=step,
        via=route.via,
    )


def rule_repair(priority: int, *, is_wanted: bool, **selector: Any) -> Repair:
    """Add the rule of a priority and selector if it is wanted, or else remove it."""
    if is_wanted:
        change, code = messages.add_rule(priority, **selector), RepairCode.ADDED
    else:
        change, code = messages.delete_rule(priority, **selector), RepairCode.REMOVED
    _, rule = change.step.split(" ", 1)  # without the verb
    return Repair(RepairKind.RULE, code, rule, change)
