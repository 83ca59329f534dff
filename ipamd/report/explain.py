"""Explain an address or a sandbox: state, owner, the evidence of each source, and the verdict with its reasons (I14).

The verdict is that of the runtime reconciler on the same evidence. Here it is only shown, and not carried out.
"""

from __future__ import annotations

from collections.abc import Iterable

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import GivenTwice
from ipamd.model.cloud import DescribedEni
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import InvalidRequestError, IpamError, log_text
from ipamd.model.evidence import Evidence, SandboxVerdict
from ipamd.model.family import IpAddress, family_of, read_spelling
from ipamd.model.history import HistoryEvent
from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion, refusal
from ipamd.model.history_subject import HistorySubject
from ipamd.model.ids import EniId
from ipamd.model.kernel import duplicate_addresses
from ipamd.model.pod_pools import NO_POOLS, pool_word
from ipamd.model.record import dataclass
from ipamd.model.time_text import rfc3339
from ipamd.model.wiring_comparison import wiring_differences
from ipamd.report.legs.explanations import explain_legs, explain_local_range, explain_trunk
from ipamd.report.past import ask
from ipamd.report.selection import sandboxes_by_container_id, sandboxes_of_pod
from ipamd.report.sources import Sources


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `ipamctl explain`.

    `sentences`: the explanation of the subject, in reading order.
    `past`: the recorded history of the subject.
    """

    subject: str
    sentences: tuple[str, ...]
    past: HistoryAnswer


def explain(sources: Sources, question: HistoryQuestion, *, find: bool = False) -> Explanation:
    """Explain an address, a pod (`namespace/name` or name), the ENI of a pod or of the trunk, or a sandbox.

    A sandbox is named by its container ID, or by a unique beginning of it.

    Args:
        question: the subject. If `at` is set, the sentences describe that instant instead of the present.
        find: whether to ask EC2 which ENI has an address that is not of this node.
    Raises: CloudError if `find` is set and EC2 does not answer; DatastoreError if the ledger cannot be read; InvalidRequestError if
        the subject is unknown, or fits more than one sandbox or pod.
    """
    subject, past = question.subject, ask(sources, question)
    if question.at is not None:
        return Explanation(subject, tuple(map(str, past.tenures)), past)
    try:
        address = read_spelling(subject)
        sentences = _explain_address(sources, address) or _explain_foreign(sources, address, find=find)
    except ValueError:
        sentences = _explain_sandbox(sources, subject)
    sentences += _explain_given_twice(sources, HistorySubject(subject))
    sentences += _explain_pending_policy_cleanup(sources, HistorySubject(subject))
    sentences += [refusal(record) for record in past.records if record.event == HistoryEvent.REFUSED]
    if not sentences and not past.records:
        raise InvalidRequestError(f"{subject} is not known", details=f"no address, pod or sandbox; {'; '.join(past.notes)}")
    return Explanation(subject, tuple(sentences or ["no longer known; its history follows"]), past)


def _explain_given_twice(sources: Sources, subject: HistorySubject) -> list[str]:
    return [f"{pair} (I1, I20)" for pair in sources.given_twice() if _is_in_question(pair, subject)]


def _explain_pending_policy_cleanup(sources: Sources, subject: HistorySubject) -> list[str]:
    sentences = []
    for pod, since in sources.pending_policy_cleanups().items():
        if subject.names_pod(str(pod)):
            sentences.append(
                f"{pod} has no sandbox any more, but the network policy agent may remember it since {rfc3339(since)}: the daemon asks "
                "the agent to forget it"
            )
    return sentences


def _explain_address(sources: Sources, address: IpAddress) -> list[str]:
    """Explain an address of the pool, of a branch ENI or of an extra leg, or the primary address of an ENI.

    Returns: [] for any other address.
    """
    row = sources.datastore.address(address)
    if row is None:
        return _explain_address_without_row(sources, address)
    sentences = [f"{address} is {row.state} since {rfc3339(row.since)} on {row.eni_id}"]
    sentences += _explain_pool(sources, row.eni_id)
    if row.prefix is not None:
        sentences.append(f"it is part of the delegated prefix {row.prefix}")
    if row.reason:
        sentences.append(f"reason: {row.reason}")
    if row.kept_for is not None and row.kept_until_s is not None:
        left_s = max(row.kept_until_s - sources.clock.monotonic(), 0.0)
        sentences.append(f"it is kept for pod {row.kept_for} for {left_s:.0f} s more, and given to no other")
    elif row.state is AddressState.FREE and row.address in sources.datastore.pinned():
        sentences.append("it is of a range of VPC_IPAMD_PINNED_ADDRESSES: only a pod that names it gets it")
    sentences += _explain_delay(sources, row)
    owner = _owner(sources, row)
    if owner:
        sentences += _explain_attachment(sources, owner)
    return sentences


def _explain_pool(sources: Sources, eni_id: EniId) -> list[str]:
    """Name the pool of an ENI.

    Returns: [] unless the network file names pools, or the ENI is recorded for a pool that the file named earlier.
    """
    eni = sources.datastore.eni(eni_id)
    if eni is None or (sources.pool.pools == NO_POOLS and not eni.pool):
        return []
    return [f"{eni_id} is of pool {pool_word(eni.pool)}"]


def _owner(sources: Sources, row: Address) -> Attachment | None:
    if not row.owner:
        return None
    return sources.datastore.attachment(row.owner)


def _explain_address_without_row(sources: Sources, address: IpAddress) -> list[str]:
    uplinked = [attachment for attachment in sources.uplinked() if attachment.address == address]
    if uplinked:
        return _explain_attachments(sources, uplinked)
    for eni in sources.datastore.enis():
        if eni.primary_address == address:
            return [f"{address} is the primary address of {eni.eni_id}: never given to a sandbox (I6)"]
    return _explain_extra_address(sources, address)


def _explain_foreign(sources: Sources, address: IpAddress, *, find: bool) -> list[str]:
    """Explain an address that is not of this node. With `find`, name the ENI on which EC2 has it. Raises: CloudError."""
    sentences = [f"{address} is not of this node: none of its ENIs and sandboxes has the address now"]
    if not find:
        hint = (
            "`--find` asks EC2 which ENI has it; which pods had it, only their node knows: "
            "docs/troubleshooting.md#who-had-this-address"
        )
        return [*sentences, hint]
    enis = _find_in_ec2(sources, address)
    for eni in enis:
        owner = f"no instance ({eni.status})"
        if eni.instance_id:
            owner = f"instance {eni.instance_id}"
        sentences.append(
            f"EC2 has it on {eni.eni_id} in {eni.subnet_id}, attached to {owner}; description: {eni.description or '-'}"
        )
    if not enis:
        sentences.append(
            "EC2 shows it on no ENI of this VPC; if it is part of a prefix, EC2 was asked only about subnets in which this node "
            "has an ENI"
        )
    return sentences


def _find_in_ec2(sources: Sources, address: IpAddress) -> list[DescribedEni]:
    """Ask EC2 which ENIs have an address, by itself or as part of a prefix. Raises: CloudError."""
    enis = list(sources.ec2.find_address(address))
    if enis:
        return enis
    # An address that is part of a prefix can be searched for only by subnet. The IPv6 ranges of subnets are not known here, so an IPv6
    # address is searched for in all subnets of this node's ENIs.
    subnets = {eni.subnet_id for eni in sources.datastore.enis() if address.version == 6 or address in eni.subnet_cidr}
    for subnet_id in subnets:
        enis += sources.ec2.find_address(address, subnet_id=subnet_id)
    return enis


def _explain_extra_address(sources: Sources, address: IpAddress) -> list[str]:
    """Explain the address of an extra leg: its range, its owner, and why it cannot be assigned now.

    Returns: [] for any other address.
    """
    meaning = explain_local_range(address)
    if not meaning:
        return []
    sentences = [meaning]
    row = next((row for row in sources.datastore.addresses() if row.other_address == address), None)
    if row is None:
        return sentences
    owner = _owner(sources, row)
    if owner is None:
        return [*sentences, f"it was assigned together with {row.address}, and is free with it", *_explain_delay(sources, row)]
    return sentences + _explain_attachment(sources, owner)


def _explain_delay(sources: Sources, row: Address) -> list[str]:
    """Explain why an address cannot be assigned now: by its state, by its place in a /80, or because its ENI is not set up.

    Returns: [] if a sandbox has the address, or if none of these is the reason.
    """
    if row.state is AddressState.COOLING and row.cooling_until is not None:
        seconds_left = (row.cooling_until - sources.clock.now()).total_seconds()
        return [f"it is free again in {max(seconds_left, 0):.0f} s, once its link is gone (I4, I8)"]
    if row.state is AddressState.QUARANTINED:
        verdicts: list[str] = []
        if sources.quarantined:
            verdicts = sources.quarantined(row.address)
        reason = "it is not assigned until runtime and kernel agree on it; they are compared at every complete CRI list"
        return [reason, *verdicts]
    if row.state is not AddressState.FREE:
        return []
    if _is_end_of_sparse_prefix(row):
        return ["it is never assigned: the first and the last address of a /80 are left out"]
    eni = sources.datastore.eni(row.eni_id)
    if eni is not None and not eni.host_ready:
        return [f"it is not assignable: host routing of {eni.eni_id} is not in place (I7)"]
    return []


def _is_end_of_sparse_prefix(row: Address) -> bool:
    """Whether an address is the first or the last of an IPv6 prefix (/80)."""
    if row.prefix is None or not family_of(row.address).is_sparse:
        return False
    return row.address in (row.prefix[0], row.prefix[-1])


def _explain_sandbox(sources: Sources, subject: str) -> list[str]:
    """Explain the trunk ENI, the ENI of a pod, a pod, or a sandbox that is named by the beginning of its container ID.

    Returns: [] if the subject is none of these.
    """
    if subject == sources.trunk():
        return [explain_trunk(subject, uplinked_count=len(sources.uplinked()))]
    uplinked = [attachment for attachment in sources.uplinked() if attachment.eni_id == subject]
    if uplinked:
        return _explain_attachments(sources, uplinked)
    sandboxes = sandboxes_of_pod(sources, subject) or sandboxes_by_container_id(sources, subject)
    return _explain_attachments(sources, sandboxes)


def _explain_attachments(sources: Sources, attachments: Iterable[Attachment]) -> list[str]:
    sentences = []
    for attachment in attachments:
        sentences += _explain_attachment(sources, attachment)
        sentences += _explain_pool(sources, attachment.eni_id)
    return sentences


def _explain_attachment(sources: Sources, attachment: Attachment) -> list[str]:
    """Explain a sandbox: its address, its wiring, the operations on it, and what the daemon does with it if no DEL comes."""
    name = ""
    if attachment.sandbox_name:
        name = f" ({attachment.sandbox_name})"
    sentences = [
        f"sandbox {attachment.key}{name} has {attachment.address} since {rfc3339(attachment.created_at)} "
        f"(by {attachment.origin})",
        f"host veth {attachment.host_veth}, netns {attachment.netns or 'not known'}, ENI {attachment.eni_id}, "
        f"route table {attachment.route_table}",
    ]
    sentences += explain_legs(attachment, sources.snat_choice)
    sentences += _explain_operations(sources, attachment)
    if sources.judgement is None:
        return [*sentences, "CRI is off: it is kept until its DEL"]
    evidence, judgement = sources.judgement(attachment)
    sentences.append(_explain_evidence(evidence))
    verbs = {SandboxVerdict.REAP: "to be reaped", SandboxVerdict.UNWIRE_THEN_REAP: "to be unwired and reaped"}
    verb = verbs.get(judgement.verdict, "kept")
    sentences.append(f"without a DEL it is {verb}: {judgement.text}")
    return sentences + _explain_wiring(sources, attachment)


def _explain_operations(sources: Sources, attachment: Attachment) -> list[str]:
    """Name the operation that is running on a sandbox. Returns: [] if there is none."""
    sentences = []
    for lock in sources.locks.holders():
        if lock.key == attachment.key:
            text = f"{lock.operation} has been running on it for {lock.age_s:.1f} s; operations waiting: {lock.waiting_count}"
            if lock.caller_left:
                text += "; its caller has left"
            sentences.append(text)
    return sentences


def _explain_wiring(sources: Sources, attachment: Attachment) -> list[str]:
    """Explain how the wiring in the kernel differs from the record."""
    try:
        survey = sources.wiring.survey()
    except IpamError as error:
        return [f"the kernel could not be read: {log_text(error)}"]
    sentences = [difference.text for difference in wiring_differences(recorded_spec(attachment), survey)]
    for veth in duplicate_addresses(survey).get(attachment.address, ()):
        if veth.name != attachment.host_veth:
            sentences.append(f"{veth.name} of {veth.key} has the address too: delete one of the two sandboxes (I1)")
    return sentences


def _is_in_question(pair: GivenTwice, subject: HistorySubject) -> bool:
    """Whether a question is about an address that both daemons assigned, or about one of the two sandboxes."""
    ours, theirs = pair.ours, pair.theirs
    if subject.text == str(ours.address):
        return True
    pods = ours.sandbox_name, f"{theirs.pod_namespace}/{theirs.pod_name}"
    if any(map(subject.names_pod, pods)):
        return True
    if subject.is_address:
        return False
    return ours.key.container_id.startswith(subject.text) or theirs.key.container_id.startswith(subject.text)


def _explain_evidence(evidence: Evidence) -> str:
    return (
        f"sources: runtime {evidence.runtime} ({evidence.absent_look_count} lists without it), "
        f"netns {evidence.netns}, host veth {evidence.host_veth}"
    )
