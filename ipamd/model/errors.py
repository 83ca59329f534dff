"""Every error that crosses a module, in one tree.

    IpamError                         cni  retry
    +- InvalidRequestError              4  no     identity, netns or arguments are malformed
    +- UndecodableConfigError           6  no     standard input is not JSON
    +- InvalidConfigError               7  no     the network configuration is wrong
    +- IncompatibleVersionError         1  no     unsupported cniVersion or protocol
    +- TryAgainError                   11  yes    would succeed later
    |  +- PoolEmptyError               11  yes    no address is assignable now
    |  +- NotServingError              11  yes    starting, restoring or draining
    |  +- DeadlineError                11  yes    the caller's deadline passed; rolled back
    |  +- BusyError                    11  yes    too many requests, or this key is busy
    |  +- VethNameTakenError           11  yes    the pod's earlier sandbox has the link's name still
    |  +- PolicyAgentSilentError       11  yes    the network policy agent does not answer
    |  +- PolicyAgentRefusedError      11  yes    it answered, and refused
    |  +- PodFactsError                11  yes    nobody tells whether the pod wants a branch ENI (I19)
    |  +- BranchPendingError           11  yes    the control plane has not given the pod its branch ENI yet
    |  +- BranchAnnotationError        11  yes    what it was given cannot be: a stranger may have written it
    +- PluginNotAvailableError         50  yes    STATUS: ADD is not served
    +- AttachmentConflictError        101  no     ADD for a key attached by another request
    +- TombstonedError                102  no     ADD after DEL of the same key (I4)
    +- UnknownAttachmentError           3  no     CHECK of a key that is not attached
    +- CheckFailedError               103  no     the sandbox's wiring differs from its record
    +- NetnsError                     104  no     the network namespace is gone or is not one
    +- WiringError                    105  yes    the kernel refused a netlink message, or to open a namespace
    +- KernelDumpError                106  yes    a dump was interrupted: silence, not evidence
    +- DatastoreError                 107  yes    SQLite refused; nothing was changed
    |  +- IllegalTransitionError      108  no     an address state pair that is not in the table
    |  +- InvariantError              109  no     a constraint that encodes I1-I9 refused
    |  +- SchemaVersionError          110  no     the file was written by a newer release
    +- RuntimeUnreachableError        111  yes    CRI did not answer completely
    |  +- EventsUnsupportedError      112  no     the runtime has no event stream
    +- CloudError                     113  yes    EC2 or instance metadata failed
    |  +- ThrottledError              114  yes    EC2 asked us to slow down
    |  +- SubnetExhaustedError        115  yes    the subnet has no free address or /28
    |  +- EniLimitError               116  no     the ENI or the instance is full
    |  +- CloudNotFoundError          117  no     the ENI does not exist (any more)
    |  +- CloudDeniedError            118  no     IAM does not allow the call
    |  +- CloudQuotaError             120  no     the account has no ENI left
    |  +- SubnetChoiceError           121  no     no subnet may have a new ENI
    |  +- DeviceIndexTakenError       124  yes    another ENI is at the device index
    +- SettingsError                  119  no     settings contradict each other
    |  +- PluginLackingError          119  no     a plugin beside ours is missing, or does not answer as CNI demands
    |  +- PortTakenError              119  no     somebody else has a port of ours
    +- ForeignStateError              122  no     amazon-vpc-cni-k8s's file is not what its format says
    +- TakeoverError                  123  yes    the node cannot change hands now

Codes 1-99 are the CNI specification's, 100 and up ours. A message names what failed and on which object; `details` gives the
cause, with counts, and the next step (I14). Adapters convert third-party errors into these; `rpc/cni.py` converts these into
wire codes.
"""

from __future__ import annotations

import errno
import re
from enum import StrEnum
from typing import ClassVar

DATASTORE, AGENT = "datastore", "policy agent"
"""Subjects of conditions: the datastore's disk refuses changes; the network policy agent is silent."""

SUPPLY, SERVICE = "supply", "service"
"""What ends a refusal besides: an address became free; ADD is served."""


class IpamError(Exception):
    """Root of the tree. `message` names the object, `details` the cause and the next step.

    `ends_with`: what tells that the cause is over, a condition's subject or one of the words below; "": nothing on the node does.
    """

    cni_code: ClassVar[int] = 100
    retryable: ClassVar[bool] = False
    ends_with: ClassVar[str] = ""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}: {self.details}" if self.details else self.message


class InvalidRequestError(IpamError):
    """Identity, netns or arguments are malformed."""

    cni_code = 4


class UndecodableConfigError(IpamError):
    """Standard input is not JSON."""

    cni_code = 6


class InvalidConfigError(IpamError):
    """The network configuration is JSON but wrong."""

    cni_code = 7


class IncompatibleVersionError(IpamError):
    """An unsupported cniVersion or envelope protocol."""

    cni_code = 1


class TryAgainError(IpamError):
    """The same request would succeed later."""

    cni_code, retryable = 11, True


class PoolEmptyError(TryAgainError):
    """No address is assignable now; details carry the counts."""

    ends_with = SUPPLY


class EgressEmptyError(TryAgainError):
    """Every address of the range for egress is in use or cooling."""


class NotServingError(TryAgainError):
    """The daemon is starting, restoring or draining."""

    ends_with = SERVICE


class DeadlineError(TryAgainError):
    """The caller's deadline passed or the caller disconnected; the operation was rolled back."""


class BusyError(TryAgainError):
    """Too many requests at once, or another operation holds this sandbox."""


class VethNameTakenError(TryAgainError):
    """Host veths are named by pod, and the pod's earlier sandbox has the name still (docs/adr/0024)."""


class PolicyAgentSilentError(TryAgainError):
    """The network policy agent did not answer in time, or nobody listens at its socket."""

    ends_with = AGENT


class PolicyAgentRefusedError(TryAgainError):
    """The network policy agent answered that it did not do what it was asked."""


class PodFactsError(TryAgainError):
    """No source tells whether a pod must have security groups of its own, so it gets no address (I19)."""


class BranchPendingError(TryAgainError):
    """The pod must have a branch ENI, and the control plane has not named it, or its trunk is not there yet."""


class BranchAnnotationError(TryAgainError):
    """What the pod's annotation says of its branch ENI cannot be, or contradicts another sandbox or the pool."""


class PluginNotAvailableError(IpamError):
    """STATUS: ADD requests are not served."""

    cni_code, retryable = 50, True


class AttachmentConflictError(IpamError):
    """ADD for a key that another request (other netns or configuration) has attached."""

    cni_code = 101


class TombstonedError(IpamError):
    """ADD for a key whose DEL has been done (I4)."""

    cni_code = 102


class UnknownAttachmentError(IpamError):
    """CHECK of a key that is not attached (CNI code 3, unknown container)."""

    cni_code = 3


class CheckFailedError(IpamError):
    """The kernel's wiring of a sandbox differs from its record."""

    cni_code = 103


class NetnsError(IpamError):
    """The network namespace is gone, or the path is not one: proof, not a failure to look."""

    cni_code = 104


class WiringError(IpamError):
    """The kernel refused a netlink message, or to open a namespace or socket; what was done has been undone."""

    cni_code, retryable = 105, True


class KernelDumpError(IpamError):
    """A dump was interrupted in every attempt, so it is no evidence (I11)."""

    cni_code, retryable = 106, True


class DatastoreError(IpamError):
    """SQLite refused; the transaction was rolled back and nothing was changed."""

    cni_code, retryable, ends_with = 107, True, DATASTORE


class IllegalTransitionError(DatastoreError):
    """A pair (state, event) that is not in the transition table."""

    cni_code, retryable, ends_with = 108, False, ""


class InvariantError(DatastoreError):
    """A constraint that encodes an invariant refused a change; the change did not happen."""

    cni_code, retryable, ends_with = 109, False, ""


class SchemaVersionError(DatastoreError):
    """The datastore was written by a newer release; it is left untouched."""

    cni_code, retryable = 110, False


class RuntimeUnreachableError(IpamError):
    """The container runtime did not give a complete answer; silence is not evidence (I11)."""

    cni_code, retryable = 111, True


class EventsUnsupportedError(RuntimeUnreachableError):
    """The runtime has no event stream; periodic lists replace it."""

    cni_code, retryable = 112, False


class CloudError(IpamError):
    """EC2 or instance metadata failed, or could not be reached.

    `code`: EC2's own, "" if it gave none. `cause`: what EC2 said, and `next_step`: what helps, for people (I14).
    """

    cni_code, retryable = 113, True

    def __init__(self, message: str, *, details: str = "", code: str = "", said: str = "", next_step: str = "") -> None:
        super().__init__(message, details=details)
        self.code = code
        self._said = said
        self.next_step = next_step
        # Whether the call may have taken effect all the same: its answer, or that of an earlier attempt, was lost. Unless the adapter
        # knows better a refusal of a class of its own changed nothing, and any other failure may have.
        self.may_have_happened = type(self) is CloudError

    @property
    def cause(self) -> str:
        """What failed and what EC2 said about it, without the advice."""
        return f"{self.message}: {self._said}" if self._said else str(self)


class ThrottledError(CloudError):
    """EC2 asked for fewer calls (RequestLimitExceeded)."""

    cni_code = 114


class SubnetExhaustedError(CloudError):
    """The subnet has no free address (InsufficientFreeAddressesInSubnet) or no free /28 (InsufficientCidrBlocks)."""

    cni_code = 115


class EniLimitError(CloudError):
    """The ENI has no free slot, or the instance takes no further ENI."""

    cni_code, retryable = 116, False


class CloudNotFoundError(CloudError):
    """The ENI does not exist (any more)."""

    cni_code, retryable = 117, False


class CloudDeniedError(CloudError):
    """IAM does not allow the call; details name the API."""

    cni_code, retryable = 118, False


class CloudQuotaError(CloudError):
    """The account's quota of ENIs in the region is used up (NetworkInterfaceLimitExceeded)."""

    cni_code, retryable = 120, False


class SubnetChoiceError(CloudError):
    """No subnet may have a new ENI, by its tags, by custom networking's file, or because it is of another zone or VPC."""

    cni_code, retryable = 121, False


class DeviceIndexTakenError(CloudError):
    """Another ENI, which Describe may not show, is attached at the device index that was asked for."""

    cni_code = 124


class SettingsError(IpamError):
    """Settings are malformed or contradict each other; details list every problem at once."""

    cni_code = 119


class PluginLackingError(SettingsError):
    """A plugin beside ours, which sandboxes need, is missing, or does not answer as the CNI specification demands."""


class PortTakenError(SettingsError):
    """A port of ours cannot be listened on now: somebody else has it, or its address is none of this host."""


def log_text(error: BaseException) -> str:
    """Return one line for a log: our message with details, or another error's type and text."""
    return str(error) if isinstance(error, IpamError) else f"{type(error).__name__}: {error}"


class ForeignStateError(IpamError):
    """The file in which amazon-vpc-cni-k8s keeps its allocations cannot be used: nothing of it is."""

    cni_code = 122


class TakeoverError(IpamError):
    """The node cannot go over from amazon-vpc-cni-k8s or back to it now; the details name what must happen first."""

    cni_code, retryable = 123, True


# What a file system refused, behind whatever it made fail.

_DISK = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "failing"}
_SQLITE_DISK = {"SQLITE_FULL": "full", "SQLITE_CANTOPEN": "full", "SQLITE_READONLY": "read-only", "SQLITE_IOERR": "failing"}
"""SQLite cannot open its files where inodes are used up. Source: sqlite.org/rescode.html."""


def disk_refusal(error: BaseException | None) -> str:
    """How a disk refused, if that is behind an error: "full", "read-only" or "failing"; else ""."""
    while error is not None:
        name = getattr(error, "sqlite_errorname", "")
        kind = next((kind for code, kind in _SQLITE_DISK.items() if name.startswith(code)), "")
        if kind := kind or (_DISK.get(error.errno or 0, "") if isinstance(error, OSError) else ""):
            return kind
        error = error.__cause__
    return ""


UNEXPECTED = "unexpected"
"""Cause of a request that ended in an error that is none of ours."""


def cause_of(error: BaseException) -> str:
    """Name an error in one word of a closed list, one for each class of the tree: the label of a metric."""
    kind = next((kind for kind in type(error).__mro__ if kind.__module__ == __name__), None)
    return UNEXPECTED if kind is None else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__.removesuffix("Error")).lower()


# Things that must never happen, by name: each is counted, and any count above 0 is a defect of ours to be reported. Pure.


class Defect(StrEnum):
    """What must never happen.

    DUPLICATE: at a start one address was wired to two sandboxes (I1). INVARIANT: a request or a loop ended because a constraint or the
    transition table refused its change (I1-I9); nothing was changed. UNEXPECTED: it ended in an error that is none of our own.
    DATASTORE: `ipamctl audit` found that memory and disk differ, or contradict themselves.
    """

    DUPLICATE = "duplicate-address"
    INVARIANT = "invariant-refused"
    UNEXPECTED = "unexpected-error"
    DATASTORE = "datastore-differs"


def defect_of(error: BaseException) -> Defect | None:
    """Which defect an error that ended a request or one turn of a loop shows; None for what happens to a node without a defect."""
    if isinstance(error, InvariantError | IllegalTransitionError):
        return Defect.INVARIANT
    return None if isinstance(error, IpamError) or disk_refusal(error) else Defect.UNEXPECTED
