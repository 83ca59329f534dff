"""The sentences of conditions. Only this module makes text of a `Problem`. Pure.

The names in braces are the fields of the problem, and `subject`, the subject of the condition.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import StrEnum

from ipamd.model.cause import Ec2Refusal, Form
from ipamd.model.conditions import ConditionCode, Problem
from ipamd.model.legs.condition_codes import LEG_MESSAGES

MESSAGES: Mapping[StrEnum, str] = {
    **LEG_MESSAGES,
    ConditionCode.LOOP_FAILED: "{subject}: {cause}; retried",
    ConditionCode.OBJECTS_SKIPPED: "{subject}: {count} skipped: {cause}; retried",
    ConditionCode.FILE_FAILED: "{subject}: {cause}; retried",
    ConditionCode.START_STEP_FAILED: "{subject}: {cause}; retried",
    ConditionCode.START_STOPPED: "{subject}: it stopped, {state} before a restart: {cause}",
    ConditionCode.SOCKET_UNREACHABLE: "{subject}: no client can connect: {cause}",
    ConditionCode.PORT_TAKEN: "{subject}: {cause}; the daemon serves without it; retried every second",
    ConditionCode.DATASTORE_REFUSES: "{subject}: ADD and DEL fail: {cause}",
    ConditionCode.SERVED_MARK_UNWRITABLE: "{subject}: {path} cannot be written ({cause}): STATUS will fail at a restart",
    ConditionCode.REQUESTS_UNANSWERED: (
        "{subject}: no request was answered for {silent_s} s: {cause}; the daemon ends after {end_s} s"
    ),
    ConditionCode.NO_REQUEST_THREAD: "{subject}: a thread cannot be created: requests wait for one another",
    ConditionCode.SETTINGS_INVALID: "settings: generation {generation} stays in force: {cause}",
    ConditionCode.SETTINGS_NEED_RESTART: "settings: needs a restart: {settings}",
    ConditionCode.SETTINGS_NEED_NEW_PODS: (
        "settings: needs a restart: {settings}; pods that run keep what they have by {kept}: delete them after the restart"
    ),
    ConditionCode.NETWORK_FILE_DIFFERS: "{subject}: {path} differs from the one in force; the next start takes it",
    ConditionCode.NETWORK_FILE_REFUSED: "{subject}: the next start would end with status 2: {cause}",
    ConditionCode.RUNTIME_OFF: "CRI is off: nothing is reaped",
    ConditionCode.RUNTIME_NOT_BELIEVED: "CRI: {cause}; nothing is reaped",
    ConditionCode.AGENT_SILENT: "{subject}: {cause}",
    ConditionCode.PODS_UNFILTERED: "{subject}: no policy agent is asked, no policy holds on this node ({settings})",
    ConditionCode.POD_FACTS_MISSING: "{subject}: {cause}; new pods get no address, whether they have security groups or not",
    ConditionCode.POD_MARKS_MISSING: "{cause}",
    ConditionCode.METADATA_UNANSWERED: "{cause}; the next try follows within {pause_s} s",
    ConditionCode.EC2_UNANSWERED: "EC2: {cause}; the pool cannot grow",
    ConditionCode.EC2_REFUSED: "EC2: {cause}",
    ConditionCode.EC2_ANSWER_IMPLAUSIBLE: "EC2's answer is implausible: {cause}; nothing is concluded from it",
    ConditionCode.EC2_DIFFERS: "EC2 and the datastore differ: {differences}",
    ConditionCode.MASS_LOSS: "EC2's answer: {cause}",
    ConditionCode.ADDRESSES_LOST: "{count} lost: EC2 does not show them; see `ipamctl audit`",
    ConditionCode.ENI_FROZEN: "ENI {eni} gives no address: {cause}",
    ConditionCode.EXTERNAL_CHANGE_ASKED: "{subject}: instance metadata: {differences}; EC2 is being asked",
    ConditionCode.EXTERNAL_CHANGE_NOT_CONFIRMED: (
        "{subject}: instance metadata: {differences}; EC2 does not confirm it and is asked again within the hour"
    ),
    ConditionCode.RESYNC_UNANSWERED: "resync: EC2 did not answer ({reasons}): {cause}",
    ConditionCode.RESYNC_NOT_BELIEVED: "resync: {result}; EC2 is asked again",
    ConditionCode.RESYNC_DOUBTS: "resync: {result}; addresses that EC2 did not show are not assigned, and EC2 is asked again",
    ConditionCode.SUBNETS_DENIED: (
        "{subject}: they are not discovered, and new ENIs are created in the node's own: {cause}; allow ec2:DescribeSubnets, or set "
        "ENABLE_SUBNET_DISCOVERY=false"
    ),
    ConditionCode.GROUPS_KEPT: "{subject}: not {groups}: {enis}",
    ConditionCode.TRACKING_REFUSED: "{subject}: new ENIs have EC2's timeouts, not the primary ENI's: {cause}",
    ConditionCode.RELEASE_REFUSED: "{subject}: excess addresses stay assignable: {cause}",
    ConditionCode.RELEASE_UNCERTAIN: "{subject}: releases that were begun are retried, and their addresses are not assigned: {cause}",
    ConditionCode.TRUNK_MISSING: "{subject}: no trunk ENI is attached: pods with security groups cannot start here",
    ConditionCode.TRUNK_WITHOUT_PLACE: (
        "{subject}: no trunk ENI is attached: pods with security groups cannot start here; every place for an ENI is taken, so it "
        "cannot be attached: drain the node, or remove pods from it"
    ),
    ConditionCode.LIMITS_UNKNOWN: "{subject}: those of {instance_type} are unknown, so a safe default is used",
    ConditionCode.PREFIXES_UNSUPPORTED: (
        "{subject}: {instance_type} is not built on Nitro and cannot have any; single addresses are allocated instead, as if "
        "ENABLE_PREFIX_DELEGATION were not set: use a Nitro type, or unset it for these nodes"
    ),
    ConditionCode.IPV6_UNSUPPORTED: (
        "IPv6: {instance_type} is not built on Nitro and has no /80, so no pod gets an address: use a Nitro or bare-metal type"
    ),
    ConditionCode.NO_FIRST_ADDRESS: "{subject}: none can be given since the node's boot, so the node is not ready: {cause}",
    ConditionCode.NO_ADDRESS: "{subject}: no address is assignable: {cause}",
    ConditionCode.EC2_PROCESS_LOST: "{subject}: {cause}; the next call starts another one",
    ConditionCode.POOL_FROZEN: "{subject}: {barred} and nothing is released: {cause}",
    ConditionCode.NOT_REPAIRED: "{subject}: {cause}",
    ConditionCode.REPAIR_CONFLICT: (
        "repair conflict: {object} was repaired {count} times, last: {last}; something else on this node undoes it, so it is "
        "{action}; look at {suspects}{culprit}"
    ),
    ConditionCode.OTHER_SOFTWARE: "{subject}: {cause}",
    ConditionCode.FOREIGN_LINKS: "{subject}: {links}; see docs/host.md",
    ConditionCode.DUPLICATE_ADDRESSES: "{addresses}: assigned to no other sandbox; delete the sandbox that should not have it",
    ConditionCode.UNRECORDED_SANDBOXES: "{subject}: wired, but {sandboxes}",
    ConditionCode.RANGES_UNRESERVED: "{subject}: EC2 may give addresses of them to others: {cause}",
    ConditionCode.RANGES_TAKE_SUBNET: (
        "{subject}: {ranges} have every address of {subnets}, so none is left there for pods that name no address"
    ),
    ConditionCode.PINNED_RELEASE_REFUSED: (
        "{subject}: EC2 does not take back {addresses}, so that the pods' next nodes do not get them: {cause}; retried"
    ),
    ConditionCode.CONNECTIONS_KEPT: "{subject}: {count} cannot be assigned again: {cause}; retried",
    ConditionCode.OTHER_CONFLIST: "{subject}: {other} sorts before {own}: the runtime calls its plugin for new pods",
    ConditionCode.OTHER_CONFLIST_UNUSABLE: (
        "{subject}: {other} sorts before {own} and is no CNI configuration: with containerd the node has no network while it is there"
    ),
    ConditionCode.CONFLIST_NOT_FOLLOWED: "{subject}: {other} sorts before {own}, and where it leads cannot be seen on this node",
    ConditionCode.CONFLIST_STALE_COPY: "{subject}: {other} sorts before {own} and leads to us with other settings than ours",
    ConditionCode.APPENDED_MISSING: "{subject}: {cause}",
    ConditionCode.APPENDED_ODD: "{subject}: of those that other software appended to {file}: {cause}",
    ConditionCode.PLUGIN_LACKING: "{subject}: {cause}",
    ConditionCode.OTHER_DAEMON: "{subject}: {cause}",
    ConditionCode.GIVEN_TWICE: "{subject}: {pairs}; delete one pod of each pair, and {remedy}",
    ConditionCode.CHAINS_LEFT: "{subject}: they could not be removed: {cause}; retried",
    ConditionCode.BACKEND_REFUSED: "{subject}: clients of the other daemon are not answered: {cause}",
    ConditionCode.EXPORTED: "{subject}: {cause}",
    ConditionCode.LINKS_NOT_IMPORTED: "{subject}: host veths that are not ours, left as they are: {links}",
}
"""By code: what is wrong, and on which object. The next step is here only if it differs from the next step for the condition's subject
(`ADVICE` in `report/verdict.py`)."""


def condition_text(subject: str, problem: Problem, form: Form = Form.FULL, known: Container[Ec2Refusal] = ()) -> str:
    """Return the sentence of a problem.

    `form`: how much of EC2's refusals the sentence contains.
    `known`: refusals that another condition shows.
    """
    fields = {"subject": subject, **problem.fields}
    if problem.cause is not None:
        fields["cause"] = problem.cause.render(form, known)
    return MESSAGES[problem.code].format_map(fields)
