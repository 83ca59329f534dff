"""Explain why an address is where it is: state, owner, what each source says, and the verdict with its reasons (I14).

The verdict is the one that the runtime reconciler would reach now, from the same evidence; it is only shown here, never acted on.
"""

from __future__ import annotations

from ipaddress import ip_address

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import GivenTwice
from ipamd.model.branch import EnforcingMode
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import InvalidRequestError, IpamError, log_text
from ipamd.model.evidence import Evidence, Verdict
from ipamd.model.family import IpAddress, family_of
from ipamd.model.history import HistoryAnswer, HistoryEvent, HistoryQuestion, Subject, refusal
from ipamd.model.kernel import duplicate_addresses, wiring_differences
from ipamd.model.record import dataclass
from ipamd.model.words import counted, rfc3339
from ipamd.report.past import ask
from ipamd.report.sources import Sources


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences in reading order, and what is recorded of the past."""

    subject: str
    sentences: tuple[str, ...]
    past: HistoryAnswer


def explain(sources: Sources, question: HistoryQuestion, *, find: bool = False) -> Explanation:
    """Explain an address, a pod (`namespace/name` or name), a branch or trunk ENI, or a sandbox by its container ID or the unique
    beginning of it.

    With `question.at` the sentences tell of that instant, and nothing of the present. `find`: ask EC2 who has what is not this node's.
    Raises: CloudError if EC2 does not say; InvalidRequestError if the subject is unknown, or fits more than one sandbox or pod.
    """
    subject, past = question.subject, ask(sources, question)
    if question.at is not None:
        return Explanation(subject, tuple(map(str, past.tenures)), past)
    try:
        address = ip_address(subject)
        sentences = _explain_address(sources, address) or _explain_foreign(sources, address, find=find)
    except ValueError:
        sentences = _explain_sandbox(sources, subject)
    sentences += [f"{one} (I1, I20)" for one in sources.given_twice() if _is_about(one, Subject(subject))]
    sentences += [
        f"the network policy agent may know {pod} since {rfc3339(since)}, and no sandbox has it: it is told to forget it"
        for pod, since in sources.owed().items()
        if Subject(subject).names_pod(str(pod))
    ]
    sentences += [refusal(record) for record in past.records if record.event == HistoryEvent.REFUSED]
    if not sentences and not past.records:
        raise InvalidRequestError(f"{subject} is not known", details=f"no address, pod or sandbox; {'; '.join(past.notes)}")
    return Explanation(subject, tuple(sentences or ["no longer known; its history follows"]), past)


def _explain_address(sources: Sources, address: IpAddress) -> list[str]:
    row = sources.datastore.address(address)
    if row is None:
        if found := [one for one in sources.branches() if one.address == address]:
            return [sentence for one in found for sentence in _explain_attachment(sources, one)]
        primary = next((eni for eni in sources.datastore.enis() if eni.primary_address == address), None)
        if primary:
            return [f"{address} is the primary address of {primary.eni_id}: never given to a sandbox (I6)"]
        return _explain_egress(sources, address)
    sentences = [f"{address} is {row.state} since {rfc3339(row.since)} on {row.eni_id}"]
    if row.prefix is not None:
        sentences.append(f"it is part of the delegated prefix {row.prefix}")
    if row.reason:
        sentences.append(f"reason: {row.reason}")
    sentences += _what_next(sources, row)
    owner = sources.datastore.attachment(row.owner) if row.owner else None
    return sentences + (_explain_attachment(sources, owner) if owner else [])


def _explain_foreign(sources: Sources, address: IpAddress, *, find: bool) -> list[str]:
    """Say that an address is not of this node, and whose it is if EC2 is to be asked. Raises: CloudError."""
    sentences = [f"{address} is not of this node: no ENI of it has it now, and no sandbox on it"]
    if not find:
        return [
            *sentences,
            "`--find` asks EC2 whose it is; who had it is told on that node: docs/troubleshooting.md#who-had-this-address",
        ]
    found = sources.ec2.find_address(address)
    if not found:  # one of a prefix, which EC2 finds by its subnet only; no ENI tells its subnet's range of IPv6
        enis = sources.datastore.enis()
        subnets = {eni.subnet_id for eni in enis if address.version == 6 or address in eni.subnet_cidr}
        found = tuple(eni for subnet in subnets for eni in sources.ec2.find_address(address, subnet_id=subnet))
    for eni in found:
        owner = f"instance {eni.instance_id}" if eni.instance_id else f"no instance ({eni.status})"
        sentences.append(
            f"EC2 has it on {eni.eni_id} in {eni.subnet_id}, attached to {owner}; description: {eni.description or '-'}"
        )
    nobody = "EC2 shows it on no ENI of this VPC; what is of a prefix it tells only of subnets in which this node has an ENI"
    return sentences if found else [*sentences, nobody]


def _explain_egress(sources: Sources, address: IpAddress) -> list[str]:
    """What an address for egress is, whose it is, and what holds it back; nothing of any other address."""
    egress = family_of(address).egress
    if address not in egress.network:
        return []
    sentences = [
        f"{address} is of {egress.network}, for egress by {egress.ifname}: good on this node alone, outside it is the node's own"
    ]
    row = next((one for one in sources.datastore.addresses() if one.other_address == address), None)
    if row is None:
        return sentences
    owner = sources.datastore.attachment(row.owner) if row.owner else None
    if owner is None:
        return [*sentences, f"it waits for {row.address}, with which it was given", *_what_next(sources, row)]
    return sentences + _explain_attachment(sources, owner)


def _what_next(sources: Sources, row: Address) -> list[str]:
    if row.state is AddressState.COOLING and row.cooling_until is not None:
        left = (row.cooling_until - sources.clock.now()).total_seconds()
        return [f"it is free again in {max(left, 0):.0f} s, once its link is gone (I4, I8)"]
    if row.state is AddressState.QUARANTINED:
        verdicts = sources.quarantined(row.address) if sources.quarantined else []
        return [
            "it is not assigned until runtime and kernel agree on it; they are compared at every complete CRI list",
            *verdicts,
        ]
    is_end = row.prefix is not None and row.address in (row.prefix[0], row.prefix[-1])
    if is_end and family_of(row.address).is_sparse and row.state is AddressState.FREE:
        return ["it is never given: of a /80 the first and the last are left out"]
    eni = sources.datastore.eni(row.eni_id)
    if row.state is AddressState.FREE and eni is not None and not eni.host_ready:
        return [f"it is not assignable: host routing of {eni.eni_id} is not in place (I7)"]
    return []


def _explain_sandbox(sources: Sources, beginning: str) -> list[str]:
    named = Subject(beginning)
    if beginning == sources.trunk():
        return [
            f"{beginning} is this node's trunk ENI, which carries {counted(len(sources.branches()), 'branch ENI')} of sandboxes"
        ]
    if found := [one for one in sources.branches() if one.eni_id == beginning]:
        return [sentence for one in found for sentence in _explain_attachment(sources, one)]
    found = [a for a in sources.datastore.attachments() if named.names_pod(a.sandbox_name)]
    pods = sorted({attachment.sandbox_name for attachment in found})
    if len(pods) > 1:
        raise InvalidRequestError(f"{beginning} is the name of {len(pods)} pods", details=f"give one of {', '.join(pods)}")
    if not found:
        found = [a for a in sources.datastore.attachments() if a.key.container_id.startswith(beginning)]
        if len({attachment.key.container_id for attachment in found}) > 1:
            raise InvalidRequestError(
                f"{beginning} is the beginning of {len(found)} container IDs", details="give more characters"
            )
    return [sentence for attachment in found for sentence in _explain_attachment(sources, attachment)]


def _explain_attachment(sources: Sources, attachment: Attachment) -> list[str]:
    name = f" ({attachment.sandbox_name})" if attachment.sandbox_name else ""
    sentences = [
        f"sandbox {attachment.key}{name} has {attachment.address} since {rfc3339(attachment.created_at)} "
        f"(by {attachment.origin})",
        f"host veth {attachment.host_veth}, netns {attachment.netns or 'not known'}, ENI {attachment.eni_id}, "
        f"route table {attachment.route_table}",
    ]
    if branch := attachment.branch:
        mode = EnforcingMode.STRICT if branch.is_strict else EnforcingMode.STANDARD
        said = {"": "EC2 agrees", None: "EC2 has not been asked"}.get(
            attachment.contradiction, f"EC2 contradicts: {attachment.contradiction}"
        )
        cut = ", so it is cut off until EC2 agrees" if attachment.is_cut_off else ""
        sentences.append(f"that ENI is its branch ENI: {mode}, MAC {branch.mac}, link {branch.link}; {said}{cut}")
    if attachment.other_address is not None:
        ifname = family_of(attachment.other_address).egress.ifname
        sentences.append(f"for egress of the other family it has {attachment.other_address} on {ifname}")
    sentences += [
        f"{held.operation} has been running on it for {held.age_s:.1f} s; operations waiting: {held.waiting_count}"
        + ("; its caller has left" if held.caller_left else "")
        for held in sources.locks.held()
        if held.key == attachment.key
    ]
    if sources.judgement is None:
        return [*sentences, "CRI is off: it is kept until its DEL"]
    evidence, judgement = sources.judgement(attachment)
    sentences.append(_sources(evidence))
    verbs = {Verdict.REAP: "to be reaped", Verdict.UNWIRE_THEN_REAP: "to be unwired and reaped"}
    verb = verbs.get(judgement.verdict, "kept")
    sentences.append(f"without a DEL it is {verb}: {'; '.join(judgement.reasons)}")
    try:
        survey = sources.wiring.survey()
    except IpamError as error:
        return [*sentences, f"the kernel could not be read: {log_text(error)}"]
    sentences += [one.what for one in wiring_differences(recorded_spec(attachment), survey)]
    others = [one for one in duplicate_addresses(survey).get(attachment.address, ()) if one.name != attachment.host_veth]
    return sentences + [f"{one.name} of {one.key} has the address too: delete one of the two sandboxes (I1)" for one in others]


def _is_about(pair: GivenTwice, subject: Subject) -> bool:
    """Whether a question is about the address that both gave, or about either sandbox."""
    ours, theirs = pair.ours, pair.theirs
    pods = ours.sandbox_name, f"{theirs.pod_namespace}/{theirs.pod_name}"
    ids = ours.key.container_id, theirs.key.container_id
    return (
        subject.text == str(ours.address)
        or any(map(subject.names_pod, pods))
        or (not subject.is_address and any(one.startswith(subject.text) for one in ids))
    )


def _sources(evidence: Evidence) -> str:
    return (
        f"sources: runtime {evidence.runtime} ({evidence.absent_look_count} lists without it), "
        f"netns {evidence.netns}, host veth {evidence.host_veth}"
    )
