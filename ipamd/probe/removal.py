"""Steps about detaching and deleting the ENI: what EC2 and the kernel show of it, and when."""

from __future__ import annotations

from ipamd.probe.calls import Answer
from ipamd.probe.checks import Verdict
from ipamd.probe.subject import LONGEST_S, Lag, NotPossible, OwnEni, Subject, until_seen, verdict_of


def detach(subject: Subject) -> None:
    """Detach twice, try to delete at once, and watch it go."""
    eni = subject.attached()
    first = subject.change("DetachNetworkInterface", eni.eni_id, eni.eni_id, AttachmentId=eni.attachment_id)
    if not first.ok:
        raise NotPossible(f"the ENI was not detached: {first}")
    again = subject.change("DetachNetworkInterface", eni.eni_id, "again", AttachmentId=eni.attachment_id)
    is_fine = again.ok or again.is_gone or again.code == "IncorrectState"
    subject.find("detach-again", is_fine, str(again), again)
    early = subject.change("DeleteNetworkInterface", eni.eni_id, "while it is being detached")
    subject.find("delete-detaching", early.ok or early.is_busy, str(early), early)
    if early.ok:
        subject.deleted_ids.add(eni.eni_id)
    lag, link_gone_s = _watch_it_go(subject, eni, since_s=first.sent_s)
    observed = f"no attachment after {lag.seen_s:.1f} s" if lag.seen_s is not None else str(lag)
    subject.find("detach-time", lag.seen_s is not None and lag.seen_s < LONGEST_S, observed, *lag.answers)
    _report_link_gone(subject, lag, link_gone_s)
    if early.ok:  # it went faster than we could ask: these looks are those after the deletion
        present_count = sum(not answer.is_gone for answer in lag.answers)
        observed = f"shown in {present_count} of {len(lag.answers)} looks after Delete"
        subject.find("delete-visible", not present_count, observed, *lag.answers)
    if lag.seen_s is not None:
        eni.attachment_id = ""


def _watch_it_go(subject: Subject, eni: OwnEni, *, since_s: float) -> tuple[Lag, float | None]:
    """Look until EC2 shows no attachment.

    Returns: how that came, and after how many seconds the link was gone; None if it was not.
    """
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
    return answer.is_gone or (answer.ok and bool(answer.enis()) and not any(entry.get("Attachment") for entry in answer.enis()))


def _report_link_gone(subject: Subject, lag: Lag, gone_s: float | None) -> None:
    if lag.seen_s is None or not subject.sees_links():
        missing = "the attachment did not go" if lag.seen_s is None else "the node's links are not visible from here"
        subject.find("link-gone", Verdict.UNKNOWN, missing)
        return
    when = "link there in every look" if gone_s is None else f"link gone after {gone_s:.1f} s"
    subject.find("link-gone", gone_s is not None and gone_s <= lag.seen_s, f"{when}, attachment after {lag.seen_s:.1f} s")


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
        lag = until_seen(subject, lambda: subject.describe(eni.eni_id), _is_gone, since_s=answer.answered_s)
        subject.find("delete-visible", verdict_of(lag), str(lag), *lag.answers)
    again = subject.change("DeleteNetworkInterface", eni.eni_id, "again")
    subject.find("delete-again", again.is_gone, str(again), again)
    subject.current = None


def _is_gone(answer: Answer) -> bool:
    return answer.is_gone
