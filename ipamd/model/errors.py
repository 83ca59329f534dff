"""The errors that cross module boundaries, in one tree. Not in it are two errors about branch ENIs (`legs/branch_errors.py`), and the
subclasses of CloudError by which `ipamd/eni/` interrupts its own work.

    IpamError                         cni  retry
    +- InvalidRequestError              4  no     identity, netns or arguments are malformed
    +- UndecodableConfigError           6  no     standard input is not JSON
    +- InvalidConfigError               7  no     the network configuration is wrong
    +- IncompatibleVersionError         1  no     unsupported cniVersion or protocol
    +- TryAgainError                   11  yes    may succeed later
    |  +- PoolEmptyError               11  yes    no address is assignable now
    |  +- LocalRangeEmptyError         11  yes    no address for egress is free now
    |  +- NotServingError              11  yes    starting, restoring or draining; or another daemon is on the node
    |  +- DeadlineError                11  yes    the caller's deadline passed; rolled back
    |  +- BusyError                    11  yes    too many requests, or this key is busy
    |  +- VethNameTakenError           11  yes    the name of the sandbox's host veth is taken
    |  +- PolicyAgentSilentError       11  yes    the network policy agent does not answer
    |  +- PolicyAgentRefusedError      11  yes    the network policy agent answered, and refused
    |  +- PodFactsError                11  yes    it is not known whether the pod needs an ENI of its own (I19)
    |  +- UplinkPendingError           11  yes    the control plane has not named the pod's own ENI yet (`legs/` has its kinds)
    |  +- SnatAnnotationError          11  yes    the pod's annotation about SNAT is not allowed, or cannot be followed
    |  +- PinnedAddressError           11  yes    the pod asks for an address that is not allowed, or not available now
    |  +- PoolAnnotationError          11  yes    the pod's annotation about its pool is not allowed, or cannot be followed
    |  +- PodPoolEmptyError            11  yes    the pod's pool has no address; other pools may have addresses
    |  +- MultiNicError                11  yes    the pod's annotation about network cards is not allowed, or cannot be followed
    |  +- ChainedPluginMissingError    11  yes    a plugin of the chain is in none of the runtime's directories
    |  +- UndeletedSandboxesError      11  yes    earlier sandboxes of a pod were never deleted, and hold addresses
    +- PluginNotAvailableError         50  yes    STATUS: ADD is not served, or there is no first address
    +- AttachmentConflictError        101  no     ADD for a key attached by another request
    +- TombstonedError                102  no     ADD after DEL of the same key (I4)
    +- UnknownAttachmentError           3  no     CHECK of a key that is not attached
    +- CheckFailedError               103  no     the sandbox's wiring differs from its record
    +- NetnsError                     104  no     the network namespace is gone, is not one, or is the host's own
    +- WiringError                    105  yes    the kernel refused, or an object that the wiring needs is missing
    |  +- NothingWiredError           105  yes    the kernel refused the link itself: the address did not reach the sandbox
    +- KernelDumpError                106  yes    a dump was interrupted, so it is no evidence
    +- DatastoreError                 107  yes    SQLite or the disk refused; nothing was changed
    |  +- IllegalTransitionError      108  no     a change of an address's state that is not allowed
    |  +- InvariantError              109  no     a constraint that encodes I1-I9 refused
    |  +- SchemaVersionError          110  no     this release cannot read the file's schema
    +- RuntimeUnreachableError        111  yes    CRI did not answer completely
    |  +- EventsUnsupportedError      112  no     the runtime has no event stream
    +- CloudError                     113  yes    EC2 or instance metadata failed
    |  +- ThrottledError              114  yes    EC2 or our own call budget requires fewer calls
    |  +- SubnetExhaustedError        115  yes    the subnet has no free address or /28
    |  +- EniLimitError               116  no     the ENI or the instance is full
    |  +- CloudNotFoundError          117  no     the ENI, subnet or other object does not exist (any more)
    |  +- CloudDeniedError            118  no     IAM, or EC2 itself, does not allow the call
    |  +- CloudQuotaError             120  no     the account has no ENI left
    |  +- SubnetChoiceError           121  no     no subnet may have a new ENI
    |  +- DeviceIndexTakenError       124  yes    another ENI is at the device index
    |  +- CloudCredentialsError       125  yes    there are no credentials for the call
    +- SettingsError                  119  no     settings are wrong, or a file or directory that they name is unusable
    |  +- PluginLackingError          119  no     a plugin beside ours is missing, or does not answer as CNI demands
    |  +- PortTakenError              119  no     another program has a port of ours
    +- ForeignStateError              122  no     amazon-vpc-cni-k8s's file is unreadable or malformed
    +- TakeoverError                  123  yes    the node cannot be migrated now

The columns are the CNI error code, and whether the runtime may retry. Codes 1-99 are those of the CNI specification, 100 and up are
ours; 190-199 are errors of the plugin, which are not here. A message says what failed and on which object; `details` gives the cause,
with counts, and the next step (I14). Adapters convert third-party errors into these errors; `rpc/cni.py` converts these into CNI
codes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from ipamd.model.cause import Cause, CausePart, Ec2Refusal, cause_of_text

DATASTORE, AGENT = "datastore", "policy agent"
"""Subjects of conditions: the datastore's disk refuses changes; the network policy agent is silent."""

METADATA = "instance metadata"
"""Subject of the condition that instance metadata has not answered who this node is, so that EC2 was not called."""

PLUGINS = "plugins"
"""Subject of the condition that a plugin beside ours is missing, or answers badly."""

UNFILTERED = "unfiltered pods"
"""Subject of the condition that a policy mode is set on a node without a policy agent."""

SUPPLY, SERVICE = "supply", "service"
"""Values of `IpamError.ends_with` that are not subjects of conditions. SUPPLY: the error is over when an address can be assigned
again. SERVICE: it is over when ADD is served again."""


class IpamError(Exception):
    """Root of the tree.

    `cni_code`: the error code in the CNI answer.
    `retryable`: whether the same request may succeed later.
    `message`: what failed, and on which object.
    `details`: the cause and the next step; "" if there is nothing to add.
    `refusal`: the code of a refusal of ADD or STATUS (`refusals.py`); "" for other errors.
    `failure`: the code of a failure (`failures.py`); "" for other errors.
    `fields`: the values for the names in braces in the code's sentence, as text.
    `ends_with`: the event after which `Health` marks the error as over, although the request was not repeated. It is the subject of a
        condition, whose end is the event, or SUPPLY or SERVICE; "" if there is no such event.
    """

    cni_code: ClassVar[int] = 100
    retryable: ClassVar[bool] = False
    ends_with: ClassVar[str] = ""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.refusal = ""
        self.failure = ""
        self.fields: Mapping[str, str] = {}

    def __str__(self) -> str:
        if self.details:
            return f"{self.message}: {self.details}"
        return self.message


class InvalidRequestError(IpamError):
    """Identity, netns or arguments of a request are malformed, or an entry of the spool is not a usable request."""

    cni_code = 4


class UndecodableConfigError(IpamError):
    """Standard input is not JSON."""

    cni_code = 6


class InvalidConfigError(IpamError):
    """The network configuration is JSON but wrong."""

    cni_code = 7


class IncompatibleVersionError(IpamError):
    """An unsupported cniVersion or envelope protocol, or a verb that the request's cniVersion does not have."""

    cni_code = 1


class TryAgainError(IpamError):
    """The same request may succeed later."""

    cni_code, retryable = 11, True


class PoolEmptyError(TryAgainError):
    """No address is assignable now. The field `details` has the numbers of addresses."""

    ends_with = SUPPLY


class LocalRangeEmptyError(TryAgainError):
    """Every address of the range for egress (`family.LocalRange`) is in use or cooling."""


class NotServingError(TryAgainError):
    """ADD is not served: the daemon is starting, restoring or draining, or ADDs are blocked because of another daemon."""

    ends_with = SERVICE


class DeadlineError(TryAgainError):
    """The caller's deadline passed or the caller disconnected; the operation was rolled back."""


class BusyError(TryAgainError):
    """Too many requests at once, or another operation works, or has just worked, on the sandbox or the link."""


class VethNameTakenError(TryAgainError):
    """The name of the sandbox's host veth, which is derived from the pod's name (docs/adr/0024), is taken: by the pod's earlier
    sandbox, by a veth that is being deleted or is not recorded, or by a link that is not ours.
    """


class PolicyAgentSilentError(TryAgainError):
    """The network policy agent did not answer in time, or nobody listens at its socket."""

    ends_with = AGENT


class PolicyAgentRefusedError(TryAgainError):
    """The network policy agent answered that it did not do the requested work, or its answer is unusable."""


class PodFactsError(TryAgainError):
    """It is not known whether a pod must have security groups of its own, so it gets no address (I19)."""


class UplinkPendingError(TryAgainError):
    """The pod must have an ENI of its own, and the control plane has not named it, or the node has no trunk ENI yet."""


class SnatAnnotationError(TryAgainError):
    """The pod's annotation about SNAT is not allowed, cannot be followed, or could not be read."""


class PinnedAddressError(TryAgainError):
    """The pod's annotation or the operator's list asks for an address that is not allowed for the pod, or not available now."""


class PoolAnnotationError(TryAgainError):
    """The pod's annotation about its pool is not allowed, cannot be followed, or could not be read."""


class MultiNicError(TryAgainError):
    """The pod's annotation about network cards is not allowed, cannot be followed now, or could not be read."""


class PodPoolEmptyError(TryAgainError):
    """The pool that the pod's namespace or annotation chose has no address. The node's own pool may have addresses."""


class ChainedPluginMissingError(TryAgainError):
    """A plugin of the chain is in none of the runtime's directories, so the runtime would fail after our ADD."""

    ends_with = PLUGINS


class UndeletedSandboxesError(TryAgainError):
    """Earlier sandboxes of pods were never deleted: this pod has too many of them, or they hold the addresses that are missing."""

    ends_with = SUPPLY


class PluginNotAvailableError(IpamError):
    """STATUS fails: ADD is not served, or the node could not assign its first address of this boot."""

    cni_code, retryable = 50, True


class AttachmentConflictError(IpamError):
    """ADD for a key that another request, with another netns or configuration, has attached."""

    cni_code = 101


class TombstonedError(IpamError):
    """ADD for a key whose DEL has been done (I4)."""

    cni_code = 102


class UnknownAttachmentError(IpamError):
    """CHECK of a key that is not attached (CNI code 3, unknown container)."""

    cni_code = 3


class CheckFailedError(IpamError):
    """The kernel's wiring of a sandbox differs from its record, or its address is lost at EC2.

    `address`, `eni_id`: the sandbox's address, and the ENI that has it, as text.
    `lost`: why no packet for the address arrives at this node; "" if packets arrive.
    `differences`: the codes of the differences of the sandbox's wiring and of the node's networking.
    """

    cni_code = 103

    def __init__(
        self,
        message: str,
        *,
        details: str = "",
        address: str = "",
        eni_id: str = "",
        lost: str = "",
        differences: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, details=details)
        self.differences = differences
        self.address = address
        self.eni_id = eni_id
        self.lost = lost


class NetnsError(IpamError):
    """It is proven that the network namespace is gone, that the path is not a network namespace, or that it is the host's own.

    If this could not be determined, the error is a WiringError.
    """

    cni_code = 104


class WiringError(IpamError):
    """The kernel refused a netlink message, or a namespace or socket could not be opened, or an object that the wiring needs is
    missing or is not ours. If an ADD was wiring a sandbox, its earlier steps were undone.
    """

    cni_code, retryable = 105, True


class NothingWiredError(WiringError):
    """The kernel refused to create the sandbox's link. The address never reached the sandbox, so the address need not cool (I8)."""

    cni_code, retryable = 105, True


class KernelDumpError(IpamError):
    """A netlink dump was interrupted in every attempt, so it is no evidence (I11)."""

    cni_code, retryable = 106, True


class DatastoreError(IpamError):
    """SQLite, or the disk under the datastore or the spool, refused; a transaction was rolled back, so nothing was changed."""

    cni_code, retryable, ends_with = 107, True, DATASTORE


class IllegalTransitionError(DatastoreError):
    """An event does not fit the state of an address: the pair (state, event) is not in the transition table."""

    cni_code, retryable, ends_with = 108, False, ""


class InvariantError(DatastoreError):
    """A constraint that encodes an invariant refused a change; the change did not happen."""

    cni_code, retryable, ends_with = 109, False, ""


class SchemaVersionError(DatastoreError):
    """This release does not know the datastore's schema, which is newer or too old; the file is left untouched."""

    cni_code, retryable = 110, False


class RuntimeUnreachableError(IpamError):
    """The container runtime did not give a complete answer, or its list is not believed; neither is evidence (I11)."""

    cni_code, retryable = 111, True


class EventsUnsupportedError(RuntimeUnreachableError):
    """The runtime has no event stream; periodic lists replace it."""

    cni_code, retryable = 112, False


class CloudError(IpamError):
    """EC2 or instance metadata failed, or could not be reached.

    `code`: EC2's error code; "" if there is none.
    `operation`: the API that was called, "" if the error is not about one call.
    `subject`: the ENI, subnet or instance that the call was about.
    `answer`: EC2's message.
    `next_step`: what an operator can do (I14).
    """

    cni_code, retryable = 113, True

    def __init__(
        self,
        message: str,
        *,
        details: str = "",
        code: str = "",
        operation: str = "",
        subject: str = "",
        answer: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(message, details=details)
        self.code = code
        self.operation = operation
        self.subject = subject
        self.answer = answer
        self.next_step = next_step
        # Whether the call may have taken effect, because the answer to one of its attempts was lost. By default this is True for a
        # plain CloudError. It is False for a subclass, because EC2 refused the call, or the call was not made. The adapter may set it.
        self.may_have_happened = type(self) is CloudError

    @property
    def cause(self) -> Cause:
        """The failure and EC2's message, without advice."""
        text = f"{self.message}: {self.answer}" if self.answer else str(self)
        if not self.operation:
            return cause_of_text(text)
        refusal = Ec2Refusal(self.operation, self.subject, self.code, text, is_throttled=isinstance(self, ThrottledError))
        return Cause((CausePart(refusal=refusal),))


class ThrottledError(CloudError):
    """EC2 (RequestLimitExceeded) or instance metadata asked for fewer calls, or this node's own call budget holds the call back."""

    cni_code = 114


class SubnetExhaustedError(CloudError):
    """The subnet has no free address (InsufficientFreeAddressesInSubnet) or no free /28 (InsufficientCidrBlocks)."""

    cni_code = 115


class EniLimitError(CloudError):
    """EC2's limits: the ENI has no free slot, or the instance takes no further ENI. Also used if another instance has the ENI."""

    cni_code, retryable = 116, False


class CloudNotFoundError(CloudError):
    """The object of the call, such as an ENI or a subnet, does not exist (any more), or the ENI does not have the address."""

    cni_code, retryable = 117, False


class CloudDeniedError(CloudError):
    """IAM does not allow the call, EC2 refuses its credentials (STALE_KEYS), or EC2 does not allow it on this object. The details name
    the API.
    """

    cni_code, retryable = 118, False


class CloudQuotaError(CloudError):
    """The account's quota of ENIs in the region is used up (NetworkInterfaceLimitExceeded)."""

    cni_code, retryable = 120, False


class SubnetChoiceError(CloudError):
    """No subnet may have a new ENI: each is excluded by its tags or by the network file, or belongs to another zone or VPC."""

    cni_code, retryable = 121, False


class DeviceIndexTakenError(CloudError):
    """Another ENI, which Describe perhaps does not show, is attached at the requested device index."""

    cni_code = 124


class CloudCredentialsError(CloudError):
    """The call was not made, because there are no credentials for it. `party`: the source that did not provide them."""

    cni_code = 125

    def __init__(
        self,
        message: str,
        *,
        details: str = "",
        operation: str = "",
        subject: str = "",
        answer: str = "",
        next_step: str = "",
        party: str = "",
    ) -> None:
        super().__init__(message, details=details, operation=operation, subject=subject, answer=answer, next_step=next_step)
        self.party = party


STALE_KEYS = frozenset(
    {
        "AuthFailure", "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "InvalidSignatureException",
        "MissingAuthenticationToken", "RequestExpired", "SignatureDoesNotMatch", "UnrecognizedClientException",
    }
)  # fmt: skip
"""Codes by which EC2 refuses the credentials of a call. A call with new credentials, which may be there soon, can succeed.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html."""


def is_about_keys(error: BaseException) -> bool:
    """Whether a call failed because there were no credentials, or EC2 refused them. New credentials may be there soon."""
    return isinstance(error, CloudCredentialsError) or (isinstance(error, CloudDeniedError) and error.code in STALE_KEYS)


class SettingsError(IpamError):
    """Settings are malformed or contradict each other, and the details list every problem at once; or a file or directory that they
    name is unusable.

    `next_step`: where the wrong settings are set, and the command that changes them; "" if that is not known.
    """

    cni_code = 119
    next_step = ""


class PluginLackingError(SettingsError):
    """A plugin in our conflist that sandboxes need in addition to our own plugin is missing, or does not answer as the CNI
    specification demands.
    """


class PortTakenError(SettingsError):
    """The daemon cannot listen on a port: another program has the port, or the configured address is not an address of this host."""


def cause_of_error(error: BaseException, *, is_advised: bool = False) -> Cause:
    """Convert an error to a `Cause`. A refusal of EC2 is kept as an `Ec2Refusal`, not as text, so that it can be shortened later.

    `is_advised`: add the next step for an operator.
    """
    if not isinstance(error, CloudError):
        return cause_of_text(log_text(error))
    return error.cause.noted(f"; {error.next_step}") if is_advised and error.next_step else error.cause


def log_text(error: BaseException) -> str:
    """Return one line for a log: our message with details, or another error's type and text."""
    if isinstance(error, IpamError):
        return str(error)
    return f"{type(error).__name__}: {error}"


class ForeignStateError(IpamError):
    """The file in which amazon-vpc-cni-k8s keeps its allocations cannot be read or is malformed. None of its entries is used."""

    cni_code = 122


class TakeoverError(IpamError):
    """The node cannot be migrated now, from amazon-vpc-cni-k8s or back to it. The details say what must happen first."""

    cni_code, retryable = 123, True


_CAUSE_MODULES = (__name__, "ipamd.model.legs.")

UNEXPECTED = "unexpected"
"""The word for an exception that is not an `IpamError`."""


def cause_of(error: BaseException) -> str:
    """Name an error in one word of a closed list, for the label of a metric.

    The list has a word for each class of the tree, and UNEXPECTED for all other exceptions.
    """
    kind = next((kind for kind in type(error).__mro__ if kind.__module__.startswith(_CAUSE_MODULES)), None)
    if kind is None:
        return UNEXPECTED
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__.removesuffix("Error")).lower()
