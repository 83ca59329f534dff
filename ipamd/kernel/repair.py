"""One repair of the host's routing."""

from __future__ import annotations

from typing import Any, NamedTuple

from ipamd.kernel import answers, messages
from ipamd.kernel.netlink import Message
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport


class Repair(NamedTuple):
    """A repair that has not been made yet.

    `kind`: kind of the object that it changes.
    `code`: code of the report after the repair.
    `target`: text for the report that names the changed object.
    `change`: the message that makes the change; None if only a sysctl is set.
    `before`, `after`: the value before and after the repair, as texts for the report; "" if the object has no value.
    `sysctl`: a key below /proc/sys and its value, which is set before `change` is sent; None: no sysctl is set.
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
    """Return the message that deletes a route. `step`: names the message in texts of errors."""
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
    """Return the repair that adds a rule if it is wanted, or else removes it. `selector`: as in `messages.add_rule`."""
    if is_wanted:
        change, code = messages.add_rule(priority, **selector), RepairCode.ADDED
    else:
        change, code = messages.delete_rule(priority, **selector), RepairCode.REMOVED
    _, rule = change.step.split(" ", 1)  # without the verb
    return Repair(RepairKind.RULE, code, rule, change)
