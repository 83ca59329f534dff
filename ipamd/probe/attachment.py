"""Steps about attaching the ENI: what EC2, the kernel and metadata show of it, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipamd.probe.calls import Answer
from ipamd.probe.checks import Verdict
from ipamd.probe.subject import LONGEST_S, METADATA_WAITS_S, NotPossible, OwnEni, Subject, addresses_of, until_seen

ATTACH_WAITS_S = (0.0, 0.5, 1.0, 2.0)
"""Before each try to attach a new ENI that EC2 does not find. Ours: seconds are usual."""


@dataclass(slots=True)
class Sightings:
    """When each source first showed the attached ENI: monotonic, None for never. `entries`: what Describe showed, in order."""

    link_s: float | None = None
    attached_s: float | None = None
    metadata_s: float | None = None
    first_metadata: frozenset[str] = frozenset()
    entries: list[tuple[Answer, Mapping[str, Any] | None]] = field(default_factory=list)


def attach(subject: Subject) -> None:
    """Attach the ENI right after its creation, and watch it appear."""
    eni = subject.eni()
    tries = []
    for wait_s in ATTACH_WAITS_S:
        subject.pause(wait_s)
        tries.append(_attach(subject, eni))
        if not tries[-1].is_gone:
            break
    refusals = "; ".join(str(answer) for answer in tries if not answer.ok)
    subject.find("attach-after-create", len(tries) == 1 and tries[0].ok, refusals or "accepted at the first try", *tries)
    if not tries[-1].ok and not tries[-1].is_lost:
        raise NotPossible(f"the ENI was not attached: {tries[-1]}")
    eni.attachment_id = str(tries[-1].body.get("AttachmentId", ""))
    eni.attach_asked_s = tries[-1].sent_s
    _watch(subject, eni)


def _attach(subject: Subject, eni: OwnEni) -> Answer:
    return subject.change(
        "AttachNetworkInterface",
        eni.eni_id,
        eni.eni_id,
        InstanceId=str(subject.identity.instance_id),
        DeviceIndex=subject.node.device_index,
        NetworkCardIndex=0,
    )


def _watch(subject: Subject, eni: OwnEni) -> None:
    """Look at EC2, links and metadata until EC2 showed the attachment twice; then report it all."""
    seen, terminate = Sightings(), Terminate()

    def look() -> Answer:
        if terminate.is_due:
            terminate.set(subject, eni)
        _look_around(subject, eni, seen)
        answer = subject.describe(eni.eni_id)
        entry = next(iter(answer.enis()), None)
        seen.entries.append((answer, entry))
        terminate.note(eni, entry)
        return answer

    subject.while_waiting = lambda: _look_at_link(subject, eni, seen)
    try:
        lag = until_seen(subject, look, _is_attached, since_s=eni.attach_asked_s)
    finally:
        subject.while_waiting = lambda: None
    subject.find(
        "attach-time",
        lag.seen_s is not None and lag.seen_s < LONGEST_S,
        f"attached after {lag.seen_s:.1f} s" if lag.seen_s is not None else str(lag),
        *lag.answers,
    )
    seen.attached_s = None if lag.seen_s is None else eni.attach_asked_s + lag.seen_s
    _report_visible(subject, eni, seen)
    _report_addresses(subject, eni, seen)
    _report_link(subject, eni, seen)
    terminate.report(subject)
    _await_metadata(subject, eni, seen)


def _is_attached(answer: Answer) -> bool:
    return any((entry.get("Attachment") or {}).get("Status") == "attached" for entry in answer.enis())


def _look_around(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    """Look at links and metadata; neither costs an EC2 call."""
    _look_at_link(subject, eni, seen)
    if seen.metadata_s is None and subject.metadata("interface-id") is not None:
        seen.metadata_s = subject.clock.monotonic()
        seen.first_metadata = frozenset((subject.metadata("local-ipv4s") or "").split())


def _look_at_link(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    if seen.link_s is None and eni.mac in (subject.links() or ()):
        seen.link_s = subject.clock.monotonic()


def _report_visible(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    shown = [entry is not None for _, entry in seen.entries]
    first = shown.index(True) if True in shown else None
    answers = [answer for answer, _ in seen.entries]
    if first is None:
        subject.find("create-visible", False, f"not seen in {len(shown)} looks", *answers)
        return
    after_s = answers[first].answered_s - eni.created_s
    relapses = shown[first:].count(False)
    observed = f"seen {after_s:.1f} s after Create, after {first} looks without it; {relapses} looks after that did not show it"
    subject.find("create-visible", first == 0 and not relapses, observed, *answers)


def _report_addresses(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    shown = [(answer, addresses_of(entry or {})) for answer, entry in seen.entries if entry and _is_attached(answer)]
    if not shown:
        subject.find("attached-addresses", Verdict.UNKNOWN, "the attachment was never shown")
        return
    answer, addresses = shown[0]
    subject.find("attached-addresses", addresses >= eni.addresses, f"{len(addresses)} of {len(eni.addresses)} addresses", answer)


def _report_link(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    if seen.attached_s is None or not subject.sees_links():
        missing = "the attachment was not seen" if seen.attached_s is None else "the node's links are not visible from here"
        subject.find("link-before-attached", Verdict.UNKNOWN, missing)
        return
    attached_s = seen.attached_s - eni.attach_asked_s
    link_s = None if seen.link_s is None else seen.link_s - eni.attach_asked_s
    when = "no link in any look" if link_s is None else f"link after {link_s:.1f} s"
    subject.find(
        "link-before-attached", link_s is not None and link_s <= attached_s, f"{when}, attached after {attached_s:.1f} s"
    )


def _await_metadata(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    """Wait until metadata lists the ENI with its addresses."""
    complete_s: float | None = None
    for wait_s in METADATA_WAITS_S:
        _look_around(subject, eni, seen)
        if seen.metadata_s is not None and frozenset((subject.metadata("local-ipv4s") or "").split()) >= eni.addresses:
            complete_s = subject.clock.monotonic()
            break
        subject.pause(wait_s)
    if seen.metadata_s is None:
        subject.find("metadata-complete", Verdict.UNKNOWN, "metadata did not list the ENI within 60 s")
        return
    is_whole = seen.first_metadata >= eni.addresses
    when = f"listed after {seen.metadata_s - eni.attach_asked_s:.1f} s with {len(seen.first_metadata)} addresses"
    later = "never complete" if complete_s is None else f"complete after {complete_s - eni.attach_asked_s:.1f} s"
    subject.find("metadata-complete", is_whole, f"{when}, {later}")


class Terminate:
    """DeleteOnTermination: read its default, set it as soon as the attachment is shown, and look whether it is."""

    def __init__(self) -> None:
        self._default: bool | None = None
        self._asked: Answer | None = None
        self._shown: list[bool] = []

    @property
    def is_due(self) -> bool:
        """Whether the default is known, and the change not asked for."""
        return self._default is not None and self._asked is None

    def note(self, eni: OwnEni, entry: Mapping[str, Any] | None) -> None:
        """Read what a look shows."""
        attachment = (entry or {}).get("Attachment") or {}
        if not attachment:
            return
        eni.attachment_id = eni.attachment_id or str(attachment.get("AttachmentId", ""))
        shown = bool(attachment.get("DeleteOnTermination"))
        if self._default is None:
            self._default = shown
        if self._asked is not None:
            self._shown.append(shown)

    def set(self, subject: Subject, eni: OwnEni) -> None:
        """Set it: should the node end now, the ENI goes with it (I9)."""
        value = {"AttachmentId": eni.attachment_id, "DeleteOnTermination": True}
        self._asked = subject.change("ModifyNetworkInterfaceAttribute", eni.eni_id, eni.eni_id, Attachment=value)

    def report(self, subject: Subject) -> None:
        """Record both checks."""
        if self._default is None:
            return
        subject.find("terminate-default", not self._default, str(self._default).lower())
        if self._asked is not None:
            shown = f"; shown in {sum(self._shown)} of {len(self._shown)} looks after it"
            holds = self._asked.ok and bool(self._shown) and all(self._shown)
            unknown = self._asked.ok and not self._shown
            subject.find("terminate-set", Verdict.UNKNOWN if unknown else holds, f"{self._asked}{shown}", self._asked)


def attach_again(subject: Subject) -> None:
    """Attach what is attached already, then try to delete it."""
    eni = subject.attached()
    answer = _attach(subject, eni)
    subject.find("attach-again", answer.is_busy, str(answer), answer)
    delete = subject.change("DeleteNetworkInterface", eni.eni_id, eni.eni_id)
    subject.find("delete-in-use", delete.is_busy, str(delete), delete)
    if delete.ok:
        subject.deleted_ids.add(eni.eni_id)
        subject.current = None
