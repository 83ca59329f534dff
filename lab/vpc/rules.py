"""Behaviour of EC2 that is unknown outside AWS, or that is reported in different ways. The lab can do each; a test chooses.

token_of_deleted   dead-eni | new-eni        A CreateNetworkInterface with the token of an ENI that was deleted returns that ENI's ID,
                                             or makes a new ENI. "Ensuring idempotency in Amazon EC2 API requests" does not say which.
token_check        first | after-capacity    Whether EC2 looks a repeated Create up by its token before it checks subnet and quota,
                                             which may be full by then, or after it. Unknown.
prefix_refusal     by-cause | InsufficientCidrBlocks | InvalidParameterValue
                                             The code if no prefix is free. cilium 31016 and amazon-vpc-cni-k8s 3105 report both.
in_use             by-call | InvalidParameterValue | InvalidNetworkInterface.InUse
                                             The code for an ENI in use. The "Error codes" page has one, amazon-vpc-cni-k8s 732 the
                                             other.
attach_check       eni-first | place-first   An Attach that asks for the place that the ENI already has is refused because the ENI is
                                             in use, or because the place is taken. Unknown.
assign_answer      new | all                 AssignPrivateIpAddresses answers with the addresses that it added, or with all that the
                                             ENI has now. The API reference says "assigned to the network interface".
managed_resources  known | unknown-parameter Whether the endpoint has the parameter IncludeManagedResources, and without it hides
                                             managed ENIs. An older endpoint refuses the parameter, and hides no ENI.
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
    """The result of a Create whose client token belongs to an ENI that was deleted."""

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
        """Return the refusal with the code that these rules choose, and with the message that belongs to this code."""
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
    """Read the object under `rules`. A rule that the object does not name has its default."""
    return Rules(
        token_of_deleted=reader.choice("token_of_deleted", TokenOfDeleted.DEAD_ENI),
        token_check=reader.choice("token_check", TokenCheck.FIRST),
        prefix_refusal=reader.choice("prefix_refusal", PrefixRefusal.BY_CAUSE),
        in_use=reader.choice("in_use", InUse.BY_CALL),
        attach_check=reader.choice("attach_check", AttachCheck.ENI_FIRST),
        assign_answer=reader.choice("assign_answer", AssignAnswer.NEW),
        managed_resources=reader.choice("managed_resources", ManagedResources.KNOWN),
    )
