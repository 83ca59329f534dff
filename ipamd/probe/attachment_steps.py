"""Steps of a probe that attach, detach and delete the ENI, and observe when EC2, the kernel and metadata show it."""

from __future__ import annotations

from ipamd.probe.calls import CallAnswer
from ipamd.probe.subject import Lag, NotPossible, OwnEni, ProbeSubject, addresses_of, until_seen

ATTACH_WAITS_S = (0.0, 0.5, 1.0, 2.0)
"""Waits in seconds before each try to attach a new ENI, as long as EC2 does not find it. Ours: EC2 usually finds it within seconds."""


def attach(subject: ProbeSubject) -> None:
    """Attach the ENI right after its creation, and wait until EC2 shows the attachment."""
    eni = subject.eni()
    tries = []
    for wait_s in ATTACH_WAITS_S:
        subject.pause(wait_s)
        tries.append(_attach(subject, eni))
        if not tries[-1].is_gone:
            break
    refusals = "; ".join(str(answer) for answer in tries if not answer.ok)
    subject.observe("attach-after-create", len(tries) == 1 and tries[0].ok, refusals or "accepted at the first try", *tries)
    if not tries[-1].ok and not tries[-1].is_lost:
        raise NotPossible(f"the ENI was not attached: {tries[-1]}")
    eni.attachment_id = str(tries[-1].body.get("AttachmentId", ""))
    _watch_attachment(subject, eni, asked_s=tries[-1].sent_s)


def _attach(subject: ProbeSubject, eni: OwnEni) -> CallAnswer:
    return subject.change(
        "AttachNetworkInterface",
        eni.eni_id,
        InstanceId=str(subject.identity.instance_id),
        DeviceIndex=subject.device_index,
        NetworkCardIndex=0,
    )


def _watch_attachment(subject: ProbeSubject, eni: OwnEni, *, asked_s: float) -> None:
    """Read EC2, links and metadata until EC2 has shown the attachment in two successive answers, or DESCRIBE_WAITS_S are over. Then
    record the observations.

    `asked_s`: monotonic time at which the Attach was sent.
    """
    link_s: list[float] = []
    listed: list[tuple[float, frozenset[str]]] = []
    terminates: list[bool] = []  # DeleteOnTermination in each answer: first its default, then the value that was set
    set_terminate: list[CallAnswer] = []

    def read_links() -> None:
        if not link_s and eni.mac in (subject.macs() or ()):
            link_s.append(subject.calls.clock.monotonic() - asked_s)

    def read_metadata() -> frozenset[str] | None:
        addresses = subject.listed()
        if addresses is not None and not listed:
            listed.append((subject.calls.clock.monotonic() - asked_s, addresses))
        return addresses

    def describe() -> CallAnswer:
        if terminates and not set_terminate:  # so that EC2 deletes the ENI with the instance if the instance ends now (I9)
            value = {"AttachmentId": eni.attachment_id, "DeleteOnTermination": True}
            set_terminate.append(subject.change("ModifyNetworkInterfaceAttribute", eni.eni_id, Attachment=value))
        if not listed:
            read_metadata()
        answer = subject.describe(eni.eni_id)
        for described in answer.enis():
            attachment = described.get("Attachment")
            if attachment:
                eni.attachment_id = eni.attachment_id or str(attachment.get("AttachmentId", ""))
                terminates.append(bool(attachment.get("DeleteOnTermination")))
        return answer

    lag = until_seen(subject, _is_attached, since_s=asked_s, ask=describe, meanwhile=read_links)
    subject.observe("attach-time", lag, _time_words("attached", lag))
    _observe_visibility(subject, eni, lag.answers)
    _observe_link(subject, "link-before-attached", next(iter(link_s), None), lag.seen_s)
    if terminates:
        subject.observe("terminate-default", terminates[0], str(terminates[0]).lower())
    for answer in set_terminate:
        later_values = terminates[1:]
        holds = None
        if later_values or not answer.ok:
            holds = answer.ok and all(later_values)
        observed = f"{answer}; shown in {sum(later_values)} of {len(later_values)} looks after it"
        subject.observe("terminate-set", holds, observed, answer)
    complete_s = subject.await_listed(eni.addresses, read_metadata)
    _observe_metadata(subject, eni, listed, complete_s, asked_s=asked_s)


def _observe_metadata(
    subject: ProbeSubject,
    eni: OwnEni,
    listed: list[tuple[float, frozenset[str]]],
    complete_s: float | None,
    *,
    asked_s: float,
) -> None:
    """Record when metadata listed the ENI, and with how many addresses.

    Args:
        listed: seconds from `asked_s` to the first list of metadata, and the addresses in it; empty if there was no list.
        complete_s: monotonic time at which metadata listed all addresses; None if it never did.
        asked_s: monotonic time at which the Attach was sent.
    """
    if not listed:
        subject.observe("metadata-complete", None, "metadata did not list the ENI within 60 s")
        return
    ((first_s, first),) = listed
    later = "never complete"
    if complete_s is not None:
        later = f"complete after {complete_s - asked_s:.1f} s"
    observed = f"listed after {first_s:.1f} s with {len(first)} addresses, {later}"
    subject.observe("metadata-complete", first >= eni.addresses, observed)


def _is_attached(answer: CallAnswer) -> bool:
    return any((eni.get("Attachment") or {}).get("Status") == "attached" for eni in answer.enis())


def _observe_visibility(subject: ProbeSubject, eni: OwnEni, answers: list[CallAnswer]) -> None:
    """Record when EC2 showed the ENI, and how many addresses it had when it was first shown as attached."""
    visible = [bool(answer.enis()) for answer in answers]
    observed = f"not seen in {len(visible)} looks"
    if any(visible):
        first = visible.index(True)
        relapses = visible[first:].count(False)
        observed = (
            f"seen {answers[first].answered_s - eni.created_s:.1f} s after Create, after {first} looks without it; "
            f"{relapses} looks after that did not show it"
        )
    subject.observe("create-visible", all(visible), observed, *answers)
    for answer in answers:
        if _is_attached(answer):
            addresses = addresses_of(answer.enis()[0])
            whole = f"{len(addresses)} of {len(eni.addresses)} addresses"
            subject.observe("attached-addresses", addresses >= eni.addresses, whole, answer)
            return
    subject.observe("attached-addresses", None, "the attachment was never shown")


def attach_again(subject: ProbeSubject) -> None:
    """Attach the ENI a second time, and then try to delete it while it is attached."""
    eni = subject.attached()
    answer = _attach(subject, eni)
    subject.observe("attach-again", answer)
    delete = subject.delete(eni.eni_id)
    subject.observe("delete-in-use", delete)
    if delete.ok:
        subject.current = None


def detach(subject: ProbeSubject) -> None:
    """Detach twice, try to delete at once, and wait until the attachment is gone."""
    eni = subject.attached()
    first = subject.change("DetachNetworkInterface", eni.eni_id, AttachmentId=eni.attachment_id)
    if not first.ok:
        raise NotPossible(f"the ENI was not detached: {first}")
    again = subject.change("DetachNetworkInterface", eni.eni_id, "again", AttachmentId=eni.attachment_id)
    subject.observe("detach-again", again)
    early = subject.delete(eni.eni_id, "while it is being detached")
    subject.observe("delete-detaching", early)
    link_gone_s: list[float] = []

    def read_links() -> None:
        if not link_gone_s and eni.mac not in (subject.macs() or (eni.mac,)):
            link_gone_s.append(subject.calls.clock.monotonic() - first.sent_s)

    lag = until_seen(subject, _has_no_attachment, since_s=first.sent_s, meanwhile=read_links)
    subject.observe("detach-time", lag, _time_words("no attachment", lag))
    _observe_link(subject, "link-gone", next(iter(link_gone_s), None), lag.seen_s)
    if early.ok:  # the detach ended before the Delete, so these answers came after the deletion
        present_count = sum(not answer.is_gone for answer in lag.answers)
        observed = f"shown in {present_count} of {len(lag.answers)} looks after Delete"
        subject.observe("delete-visible", not present_count, observed, *lag.answers)
    if lag.seen_s is not None:
        eni.attachment_id = ""


def delete(subject: ProbeSubject) -> None:
    """Delete the ENI, wait until it is gone, and delete it again."""
    eni = subject.eni()
    if eni.attachment_id:
        raise NotPossible("the ENI is attached")
    if eni.eni_id not in subject.deleted_ids:
        answer = subject.delete(eni.eni_id)
        if not answer.ok:
            raise NotPossible(f"the ENI was not deleted: {answer}")
        lag = until_seen(subject, lambda described: described.is_gone, since_s=answer.answered_s)
        subject.observe("delete-visible", lag.is_prompt, str(lag), *lag.answers)
    again = subject.change("DeleteNetworkInterface", eni.eni_id, "again")
    subject.observe("delete-again", again)
    subject.current = None


def _has_no_attachment(answer: CallAnswer) -> bool:
    if answer.is_gone:
        return True
    enis = answer.enis()
    return answer.ok and bool(enis) and not any(eni.get("Attachment") for eni in enis)


def _time_words(change: str, lag: Lag) -> str:
    """A sentence about the time that a change took."""
    if lag.seen_s is None:
        return str(lag)
    return f"{change} after {lag.seen_s:.1f} s"


_LINK_WORDS = {
    "link-before-attached": ("no link in any look", "link", "attached", "the attachment was not seen"),
    "link-gone": ("link there in every look", "link gone", "attachment", "the attachment did not go"),
}
"""Check -> four phrases for its report, in this order: that the link did not change; how the link changed; what changed at EC2;
that EC2 did not show the change."""


def _observe_link(subject: ProbeSubject, name: str, link_s: float | None, eni_s: float | None) -> None:
    """Record whether the link changed no later than EC2 showed the change.

    Args:
        name: the name of the check, a key of _LINK_WORDS.
        link_s: seconds from the request to the change of the link; None if it did not change.
        eni_s: seconds from the request to EC2's answer that shows the change; None if no answer does.
    """
    never, link, change, missing = _LINK_WORDS[name]
    if eni_s is None:
        subject.observe(name, None, missing)
        return
    if subject.macs() is None:
        subject.observe(name, None, "the node's links are not visible from here")
        return
    when = never
    if link_s is not None:
        when = f"{link} after {link_s:.1f} s"
    subject.observe(name, link_s is not None and link_s <= eni_s, f"{when}, {change} after {eni_s:.1f} s")
