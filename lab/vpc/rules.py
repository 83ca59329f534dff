"""What nobody outside AWS knows, or what is reported in two ways: the lab plays either, and a test chooses.

token_of_deleted   dead-eni | new-eni        CreateNetworkInterface again with the token of an ENI that was deleted: its ID, or a
                                             new ENI. "Ensuring idempotency in Amazon EC2 API requests" does not say.
token_check        first | after-capacity    whether a repeated Create is recognized when the subnet or quota is full by then. Unknown.
prefix_refusal     by-cause | InsufficientCidrBlocks | InvalidParameterValue
                                             cilium 31016 and amazon-vpc-cni-k8s 3105 saw both codes when no prefix is to be had.
in_use             by-call | InvalidParameterValue | InvalidNetworkInterface.InUse
                                             the "Error codes" page has one, amazon-vpc-cni-k8s 732 the other.
attach_check       eni-first | place-first   whether an ENI that is attached where it is asked to be is refused as in use, or its
                                             place as taken. Unknown.
assign_answer      new | all                 AssignPrivateIpAddresses answers with what it added, or with all that the ENI has now; the
                                             API reference says "assigned to the network interface".
managed_resources  known | unknown-parameter whether the endpoint knows IncludeManagedResources, and hides managed ENIs without it; an
                                             older one refuses it and hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lab.vpc import errors
from lab.vpc.errors import Ec2Error
from lab.vpc.spec_reader import Reader

_CIDR_BLOCKS = errors.no_free_prefixes()
_NO_ROOM = errors.no_room_for_prefixes()
_IN_USE = "InvalidNetworkInterface.InUse"


class TokenOfDeleted(StrEnum):
    """The result of a Create with a client token whose ENI was deleted."""

    DEAD_ENI = "dead-eni"
    NEW_ENI = "new-eni"


class TokenCheck(StrEnum):
    """When a Create looks its client token up."""

    FIRST = "first"
    AFTER_CAPACITY = "after-capacity"


class PrefixRefusal(StrEnum):
    """The code with which a prefix is refused."""

    BY_CAUSE = "by-cause"
    CIDR_BLOCKS = "InsufficientCidrBlocks"
    INVALID_VALUE = "InvalidParameterValue"


class InUse(StrEnum):
    """The code with which EC2 refuses to attach or delete an ENI in use. BY_CALL: each of the two calls has its own code."""

    BY_CALL = "by-call"
    INVALID_VALUE = "InvalidParameterValue"
    IN_USE = "InvalidNetworkInterface.InUse"


class AttachCheck(StrEnum):
    """Which check of an attachment comes first."""

    ENI_FIRST = "eni-first"
    PLACE_FIRST = "place-first"


class AssignAnswer(StrEnum):
    """The addresses in the answer to an Assign."""

    NEW = "new"
    ALL = "all"


class ManagedResources(StrEnum):
    """Whether the endpoint supports ENIs that AWS services manage."""

    KNOWN = "known"
    UNKNOWN_PARAMETER = "unknown-parameter"


@dataclass(frozen=True)
class Rules:
    """The chosen alternative of each rule."""

    token_of_deleted: TokenOfDeleted = TokenOfDeleted.DEAD_ENI
    token_check: TokenCheck = TokenCheck.FIRST
    prefix_refusal: PrefixRefusal = PrefixRefusal.BY_CAUSE
    in_use: InUse = InUse.BY_CALL
    attach_check: AttachCheck = AttachCheck.ENI_FIRST
    assign_answer: AssignAnswer = AssignAnswer.NEW
    managed_resources: ManagedResources = ManagedResources.KNOWN

    def reword(self, refusal: Ec2Error) -> Ec2Error:
        """Return the refusal with the chosen code and that code's words."""
        said = (refusal.code, refusal.message)
        if said in ((_CIDR_BLOCKS.code, _CIDR_BLOCKS.message), (_NO_ROOM.code, _NO_ROOM.message)):
            chosen = {PrefixRefusal.CIDR_BLOCKS: _CIDR_BLOCKS, PrefixRefusal.INVALID_VALUE: _NO_ROOM}
            return chosen.get(self.prefix_refusal, refusal)
        if refusal.code == _IN_USE and self.in_use is InUse.INVALID_VALUE:
            return errors.invalid_value(refusal.message.replace("in use.", "is currently in use."))
        if refusal.message.endswith("is currently in use.") and self.in_use is InUse.IN_USE:
            return Ec2Error(_IN_USE, refusal.message)
        return refusal


def read_rules(reader: Reader) -> Rules:
    """Read the object under `rules`; what it does not name is as by default."""
    return Rules(
        token_of_deleted=reader.choice("token_of_deleted", TokenOfDeleted.DEAD_ENI),
        token_check=reader.choice("token_check", TokenCheck.FIRST),
        prefix_refusal=reader.choice("prefix_refusal", PrefixRefusal.BY_CAUSE),
        in_use=reader.choice("in_use", InUse.BY_CALL),
        attach_check=reader.choice("attach_check", AttachCheck.ENI_FIRST),
        assign_answer=reader.choice("assign_answer", AssignAnswer.NEW),
        managed_resources=reader.choice("managed_resources", ManagedResources.KNOWN),
    )
