"""Steps about attaching, detaching and deleting the ENI: what EC2, the kernel and metadata show, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipamd.cloud.probe.calls import Answer
from ipamd.cloud.probe.checks import Verdict
from ipamd.cloud.probe.subject import (
    METADATA_WAITS_S,
    Lag,
    NotPossible,
    OwnEni,
    Subject,
    addresses_of,
    until_seen,
    verdict_of,
)

ATTACH_WAITS_S = (0.0, 0.5, 1.0, 2.0)
"""Before each try to attach a new ENI that EC2 does not find. Ours: seconds are usual."""

LONGEST_S = 60.0
"""How long the daemon waits for an attach or a detach. Source: `ipamd/cloud/retries.py`, ATTACHING and SETTLING."""


def is_busy(answer: Answer) -> bool:
    """Whether the answer is one that says "in use"."""
    return answer.code == "InvalidNetworkInterface.InUse" or (
        answer.code == "InvalidParameterValue" and "in use" in answer.message
    )


def is_gone(answer: Answer) -> bool:
    """Whether the answer is one that says "not found"."""
    return answer.code.endswith(".NotFound")


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
        if not is_gone(tries[-1]):
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
        InstanceId=str(subject.node.identity.instance_id),
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
    if seen.link_s is None or seen.attached_s is None:
        missing = "link" if seen.link_s is None else "attachment"
        subject.find("link-before-attached", Verdict.UNKNOWN, f"the {missing} was not seen")
        return
    link_s, attached_s = seen.link_s - eni.attach_asked_s, seen.attached_s - eni.attach_asked_s
    observed = f"link after {link_s:.1f} s, attached after {attached_s:.1f} s"
    subject.find("link-before-attached", link_s <= attached_s, observed)


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
    subject.find("attach-again", is_busy(answer), str(answer), answer)
    delete = subject.change("DeleteNetworkInterface", eni.eni_id, eni.eni_id)
    subject.find("delete-in-use", is_busy(delete), str(delete), delete)
    if delete.ok:
        subject.deleted_ids.add(eni.eni_id)
        subject.current = None


def detach(subject: Subject) -> None:
    """Detach twice, try to delete at once, and watch it go."""
    eni = subject.attached()
    first = subject.change("DetachNetworkInterface", eni.eni_id, eni.eni_id, AttachmentId=eni.attachment_id)
    if not first.ok:
        raise NotPossible(f"the ENI was not detached: {first}")
    again = subject.change("DetachNetworkInterface", eni.eni_id, "again", AttachmentId=eni.attachment_id)
    is_fine = again.ok or is_gone(again) or again.code == "IncorrectState"
    subject.find("detach-again", is_fine, str(again), again)
    early = subject.change("DeleteNetworkInterface", eni.eni_id, "while it is being detached")
    subject.find("delete-detaching", early.ok or is_busy(early), str(early), early)
    if early.ok:
        subject.deleted_ids.add(eni.eni_id)
    lag, link_gone_s = _watch_it_go(subject, eni, since_s=first.sent_s)
    observed = f"no attachment after {lag.seen_s:.1f} s" if lag.seen_s is not None else str(lag)
    subject.find("detach-time", lag.seen_s is not None and lag.seen_s < LONGEST_S, observed, *lag.answers)
    _report_link_gone(subject, lag, link_gone_s)
    if lag.seen_s is not None:
        eni.attachment_id = ""


def _watch_it_go(subject: Subject, eni: OwnEni, *, since_s: float) -> tuple[Lag, float | None]:
    """Look until EC2 shows no attachment. Returns: how that came, and after how many seconds the link was gone; None if it never was."""
    gone_s: list[float] = []

    def look_at_link() -> None:
        links = subject.links()
        if links is not None and eni.mac not in links:
            gone_s.append(subject.clock.monotonic() - since_s)

    def look() -> Answer:
        look_at_link()
        return subject.describe(eni.eni_id)

    subject.while_waiting = look_at_link
    try:
        lag = until_seen(subject, look, _has_no_attachment, since_s=since_s)
    finally:
        subject.while_waiting = lambda: None
    return lag, min(gone_s, default=None)


def _has_no_attachment(answer: Answer) -> bool:
    return is_gone(answer) or (answer.ok and bool(answer.enis()) and not any(entry.get("Attachment") for entry in answer.enis()))


def _report_link_gone(subject: Subject, lag: Lag, gone_s: float | None) -> None:
    if gone_s is None or lag.seen_s is None:
        missing = "the link was not seen to go" if gone_s is None else "the attachment did not go"
        subject.find("link-gone", Verdict.UNKNOWN, missing)
        return
    observed = f"link gone after {gone_s:.1f} s, attachment after {lag.seen_s:.1f} s"
    subject.find("link-gone", gone_s <= lag.seen_s, observed)


def delete(subject: Subject) -> None:
    """Delete the ENI, watch it go, and delete it again."""
    eni = subject.eni()
    if eni.attachment_id:
        raise NotPossible("the ENI is attached")
    if eni.eni_id not in subject.deleted_ids:
        answer = subject.change("DeleteNetworkInterface", eni.eni_id, eni.eni_id)
        if not answer.ok:
            raise NotPossible(f"the ENI was not deleted: {answer}")
        subject.deleted_ids.add(eni.eni_id)
        lag = until_seen(subject, lambda: subject.describe(eni.eni_id), is_gone, since_s=answer.answered_s)
        subject.find("delete-visible", verdict_of(lag), str(lag), *lag.answers)
    again = subject.change("DeleteNetworkInterface", eni.eni_id, "again")
    subject.find("delete-again", is_gone(again), str(again), again)
    subject.current = None
