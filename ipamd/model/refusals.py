"""The refusals of ADD and STATUS: for each code its error class, its message, and the next step. Pure.

`pinned_refusals.py` and `legs/refusals.py` have further refusals in the same form. The class determines the CNI code and whether the
runtime may retry (`errors.py`). The code identifies the reason, and it stays the same when the sentence is reworded. Names in braces
are the fields of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from ipamd.model.errors import (
    AttachmentConflictError,
    BusyError,
    ChainedPluginMissingError,
    DeadlineError,
    IpamError,
    MultiNicError,
    NetnsError,
    NotServingError,
    PluginNotAvailableError,
    PodFactsError,
    PodPoolEmptyError,
    PolicyAgentRefusedError,
    PolicyAgentSilentError,
    PoolAnnotationError,
    PoolEmptyError,
    SnatAnnotationError,
    TombstonedError,
    UndeletedSandboxesError,
    VethNameTakenError,
    WiringError,
)


class RefusalCode(StrEnum):
    """Why ADD or STATUS is refused: the value of the key `refusal` in the request's log line."""

    HELD = "held"
    NOT_SERVING_YET = "not-serving-yet"
    SHUTTING_DOWN = "shutting-down"
    STATUS_NOT_SERVING = "status-not-serving"
    STATUS_NO_ADDRESS = "status-no-address"
    TOO_MANY_ADDS = "too-many-adds"
    SANDBOX_BUSY = "sandbox-busy"
    JUST_DETACHED = "just-detached"
    DEADLINE_PASSED = "deadline-passed"
    CALLER_LEFT = "caller-left"
    SANDBOX_DELETED = "sandbox-deleted"
    ATTACHED_OTHERWISE = "attached-otherwise"
    NETNS_REPLACED = "netns-replaced"
    NO_ADDRESS = "no-address"
    ENI_GONE = "eni-gone"
    NAME_DYING = "name-dying"
    NAME_OF_FOREIGN_LINK = "name-of-foreign-link"
    NAME_OF_UNRECORDED = "name-of-unrecorded"
    NAME_OF_PREDECESSOR = "name-of-predecessor"
    AGENT_SILENT = "agent-silent"
    AGENT_REFUSED = "agent-refused"
    POD_FACTS_UNKNOWN = "pod-facts-unknown"
    SNAT_NOT_ALLOWED = "snat-not-allowed"
    SNAT_VALUE_UNKNOWN = "snat-value-unknown"
    SNAT_NOT_APPLICABLE = "snat-not-applicable"
    SNAT_ANNOTATION_UNKNOWN = "snat-annotation-unknown"
    POOL_NOT_ALLOWED = "pool-not-allowed"
    POOL_NOT_APPLICABLE = "pool-not-applicable"
    POOL_ANNOTATION_UNKNOWN = "pool-annotation-unknown"
    POOL_WITHOUT_ADDRESS = "pool-without-address"
    MULTI_NIC_NOT_ALLOWED = "multi-nic-not-allowed"
    MULTI_NIC_VALUE_UNKNOWN = "multi-nic-value-unknown"
    MULTI_NIC_NOT_APPLICABLE = "multi-nic-not-applicable"
    MULTI_NIC_CARD_NOT_MANAGED = "multi-nic-card-not-managed"
    MULTI_NIC_ANNOTATION_UNKNOWN = "multi-nic-annotation-unknown"
    MULTI_NIC_CARDS_UNKNOWN = "multi-nic-cards-unknown"
    CHAIN_INCOMPLETE = "chain-incomplete"
    TOO_MANY_SANDBOXES = "too-many-sandboxes"
    ADDRESSES_UNDELETED = "addresses-undeleted"


class Refusal(NamedTuple):
    """The error of a refusal.

    `error`: its class.
    `message`: what failed, and on which object.
    `details`: the cause, and the next step.
    """

    error: type[IpamError]
    message: str
    details: str


_SAFE = "the operation was rolled back; a retry is safe"
_NO_OTHER_NAME = (
    "retry: the name is free once that sandbox is not ready, or is deleted; no other name would be under network policy"
)
_AGENT = (
    "{cause}; start its DaemonSet on this node; or unset NETWORK_POLICY_ENFORCING_MODE, or set VPC_IPAMD_POLICY_AGENT=absent to run "
    "pods unfiltered; retry"
)

REFUSALS: Mapping[RefusalCode, Refusal] = {
    RefusalCode.HELD: Refusal(NotServingError, "vpc-ipamd assigns no address now", "{cause}"),
    RefusalCode.NOT_SERVING_YET: Refusal(
        NotServingError,
        "vpc-ipamd is {phase} and does not take ADD yet",
        "up for {up_s} s, at work on: {work}; retry; see `ipamctl status`",
    ),
    RefusalCode.SHUTTING_DOWN: Refusal(NotServingError, "vpc-ipamd is shutting down", "its successor will take this ADD: retry"),
    RefusalCode.STATUS_NOT_SERVING: Refusal(
        PluginNotAvailableError, "vpc-ipamd has been {phase} for {for_s} s and does not take ADD", "{cause}"
    ),
    RefusalCode.STATUS_NO_ADDRESS: Refusal(
        PluginNotAvailableError, "vpc-ipamd has had no address to assign for {for_s} s", "{cause}"
    ),
    RefusalCode.TOO_MANY_ADDS: Refusal(BusyError, "{limit} ADDs are at work already", "retry: threads are kept free for DEL"),
    RefusalCode.SANDBOX_BUSY: Refusal(
        BusyError,
        "another operation holds sandbox {sandbox}",
        "{holder} has run for {for_s} s; this {operation} waited until its deadline; a retry is safe",
    ),
    RefusalCode.JUST_DETACHED: Refusal(BusyError, "sandbox {sandbox} was just detached", "retry"),
    RefusalCode.DEADLINE_PASSED: Refusal(DeadlineError, "the deadline passed while {doing}", _SAFE),
    RefusalCode.CALLER_LEFT: Refusal(DeadlineError, "the caller left while {doing}", _SAFE),
    RefusalCode.SANDBOX_DELETED: Refusal(
        TombstonedError,
        "sandbox {sandbox} was deleted",
        "an ADD after its DEL is refused; the runtime makes a new sandbox instead",
    ),
    RefusalCode.ATTACHED_OTHERWISE: Refusal(
        AttachmentConflictError,
        "sandbox {sandbox} is attached already, with address {address}",
        "by another request (netns {netns}, this one {own_netns}); DEL it first",
    ),
    RefusalCode.NETNS_REPLACED: Refusal(
        NetnsError, "netns {netns} of sandbox {sandbox} was replaced while it was wired", "the sandbox is gone; retry"
    ),
    RefusalCode.NO_ADDRESS: Refusal(PoolEmptyError, "no address for sandbox {sandbox}", "cause: {cause}; {counts}; next: {step}"),
    RefusalCode.ENI_GONE: Refusal(WiringError, "ENI {eni} of address {address} is no longer recorded", "retry"),
    RefusalCode.NAME_DYING: Refusal(VethNameTakenError, "host veth {veth} of sandbox {sandbox} is being deleted", "retry"),
    RefusalCode.NAME_OF_FOREIGN_LINK: Refusal(
        VethNameTakenError,
        "host veth {veth} of sandbox {sandbox} is taken by a link without our alias",
        "see `ip -d link show {veth}`",
    ),
    RefusalCode.NAME_OF_UNRECORDED: Refusal(
        VethNameTakenError,
        "host veth {veth} of sandbox {sandbox} is that of {holder}, which is not recorded",
        "it is adopted or removed by itself; retry",
    ),
    RefusalCode.NAME_OF_PREDECESSOR: Refusal(
        VethNameTakenError,
        "host veth {veth} of sandbox {sandbox} is that of the pod's earlier sandbox {holder}, which is {state}",
        _NO_OTHER_NAME,
    ),
    RefusalCode.AGENT_SILENT: Refusal(PolicyAgentSilentError, "the network policy agent does not answer at {socket}", _AGENT),
    RefusalCode.AGENT_REFUSED: Refusal(
        PolicyAgentRefusedError,
        "the network policy agent refused {call} for pod {pod}",
        "{cause}; see its log on this node; retry",
    ),
    RefusalCode.POD_FACTS_UNKNOWN: Refusal(PodFactsError, "{pod} gets no address (I19): {cause}", "{step}"),
    RefusalCode.SNAT_NOT_ALLOWED: Refusal(
        SnatAnnotationError,
        "{pod} gets no address: its annotation {annotation}={value} is not allowed in namespace {namespace}",
        "add the namespace to VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES, or remove the annotation",
    ),
    RefusalCode.SNAT_VALUE_UNKNOWN: Refusal(
        SnatAnnotationError,
        "{pod} gets no address: its annotation {annotation}={value} is none of {choices}",
        "correct the annotation, or remove it",
    ),
    RefusalCode.SNAT_NOT_APPLICABLE: Refusal(
        SnatAnnotationError,
        "{pod} gets no address: its annotation {annotation}={value} cannot be followed",
        "{cause}; remove the annotation",
    ),
    RefusalCode.SNAT_ANNOTATION_UNKNOWN: Refusal(
        SnatAnnotationError,
        "{pod} gets no address: the runtime did not hand over its annotations, so {annotation} is not known",
        "containerd does from 1.5 on and CRI-O from 1.29 on, if our conflist asks for them: it does some seconds after the daemon's "
        "start; retry; or remove the namespace from VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES",
    ),
    RefusalCode.POOL_NOT_ALLOWED: Refusal(
        PoolAnnotationError,
        "{pod} gets no address: its annotation {annotation}={value} is not allowed in namespace {namespace}",
        "allowed there: {choices}; correct or remove the annotation, or add NAMESPACE=POOL to VPC_IPAMD_POOL_ANNOTATION_NAMESPACES",
    ),
    RefusalCode.POOL_NOT_APPLICABLE: Refusal(
        PoolAnnotationError,
        "{pod} gets no address: its annotation {annotation}={value} cannot be followed",
        "{cause}; remove the annotation",
    ),
    RefusalCode.POOL_ANNOTATION_UNKNOWN: Refusal(
        PoolAnnotationError,
        "{pod} gets no address: the runtime did not hand over its annotations, so {annotation} is not known",
        "containerd does from 1.5 on and CRI-O from 1.29 on, if our conflist asks for them: it does some seconds after the daemon's "
        "start; retry; or remove the namespace from VPC_IPAMD_POOL_ANNOTATION_NAMESPACES",
    ),
    RefusalCode.POOL_WITHOUT_ADDRESS: Refusal(
        PodPoolEmptyError,
        "no address of pool {pool} for sandbox {sandbox}",
        "cause: {cause}; {counts}; next: {step}; other pools serve on",
    ),
    RefusalCode.MULTI_NIC_NOT_ALLOWED: Refusal(
        MultiNicError,
        "{pod} gets no address: its annotation {annotation} is not allowed in namespace {namespace}",
        "add the namespace to VPC_IPAMD_MULTI_NIC_NAMESPACES, or remove the annotation",
    ),
    RefusalCode.MULTI_NIC_VALUE_UNKNOWN: Refusal(
        MultiNicError,
        "{pod} gets no address: its annotation {annotation} is {value}",
        "it must be indexes of network cards, from 0 to {most}, each once, comma separated",
    ),
    RefusalCode.MULTI_NIC_NOT_APPLICABLE: Refusal(
        MultiNicError,
        "{pod} gets no address: its annotation {annotation} cannot be followed",
        "a pod with security groups of its own has its branch ENI only; remove the annotation",
    ),
    RefusalCode.MULTI_NIC_CARD_NOT_MANAGED: Refusal(
        MultiNicError,
        "{pod} gets no address: it asks for an interface of network card {cards}, which is not managed on this node",
        "managed are {managed}; a card is left alone if it has room for one ENI, or if its ENIs are not for pods",
    ),
    RefusalCode.MULTI_NIC_ANNOTATION_UNKNOWN: Refusal(
        MultiNicError,
        "{pod} gets no address: the runtime did not hand over its annotations, so {annotation} is not known",
        "containerd does from 1.5 on and CRI-O from 1.29 on, if our conflist asks for them: it does some seconds after the daemon's "
        "start; retry; or remove the namespace from VPC_IPAMD_MULTI_NIC_NAMESPACES",
    ),
    RefusalCode.MULTI_NIC_CARDS_UNKNOWN: Refusal(
        MultiNicError,
        "{pod} gets no address: it asks for interfaces of network cards, and the node's cards are not known yet",
        "retry: they are known once EC2 or the built-in table has named the limits of the instance type",
    ),
    RefusalCode.CHAIN_INCOMPLETE: Refusal(
        ChainedPluginMissingError,
        "plugin {plugins} of the chain is missing in {directories}",
        "no address is assigned meanwhile, because the runtime would fail behind it and delete nothing; put the plugin there, or "
        "remove it from the conflist; ADD is served again at once",
    ),
    RefusalCode.TOO_MANY_SANDBOXES: Refusal(
        UndeletedSandboxesError,
        "pod {pod} has too many earlier sandboxes",
        "cause: {count} of it were never deleted: {sandboxes}; next: {step}",
    ),
    RefusalCode.ADDRESSES_UNDELETED: Refusal(
        UndeletedSandboxesError,
        "no address for sandbox {sandbox}",
        "cause: {count} of {pods} were never deleted and hold addresses; {cause}; {counts}; next: {step}",
    ),
}
"""By code: what failed, on which object, and what to do (I14)."""


def refusal(code: RefusalCode, **fields: object) -> IpamError:
    """Make the error of a refusal, for the caller to raise. The fields become text."""
    return refusal_of(code, REFUSALS[code], fields)


def refusal_of(code: str, row: Refusal, fields: Mapping[str, object]) -> IpamError:
    """Make the error of a refusal of this module or of another module with refusals. The fields become text."""
    texts = {name: str(value) for name, value in fields.items()}
    error = row.error(row.message.format_map(texts), details=row.details.format_map(texts))
    error.refusal, error.fields = code, texts
    return error
