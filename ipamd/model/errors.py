"""Every error that crosses a module, in one tree.

    IpamError                         cni  grpc                 retry
    +- InvalidRequestError              4  INVALID_ARGUMENT     no    identity, netns or arguments are malformed
    +- UndecodableConfigError           6  INVALID_ARGUMENT     no    standard input is not JSON
    +- InvalidConfigError               7  INVALID_ARGUMENT     no    the network configuration is wrong
    +- IncompatibleVersionError         1  FAILED_PRECONDITION  no    cniVersion or protocol that we do not speak
    +- TryAgainError                   11  UNAVAILABLE          yes   would succeed later
    |  +- PoolEmptyError               11  RESOURCE_EXHAUSTED   yes   no address is assignable now
    |  +- NotServingError              11  UNAVAILABLE          yes   starting, restoring or draining
    |  +- DeadlineError                11  DEADLINE_EXCEEDED    yes   the caller's deadline passed; rolled back
    |  +- BusyError                    11  RESOURCE_EXHAUSTED   yes   too many requests, or this key is busy
    +- PluginNotAvailableError         50  UNAVAILABLE          yes   STATUS: ADD is not served
    +- AttachmentConflictError        101  ALREADY_EXISTS       no    ADD for a key attached by another request
    +- TombstonedError                102  FAILED_PRECONDITION  no    ADD after DEL of the same key (I4)
    +- UnknownAttachmentError           3  NOT_FOUND            no    CHECK of a key that is not attached
    +- CheckFailedError               103  FAILED_PRECONDITION  no    the sandbox's wiring differs from its record
    +- NetnsError                     104  FAILED_PRECONDITION  no    the network namespace is gone or is not one
    +- WiringError                    105  INTERNAL             yes   the kernel refused a netlink message
    +- KernelDumpError                106  UNAVAILABLE          yes   a dump was interrupted: silence, not evidence
    +- DatastoreError                 107  INTERNAL             yes   SQLite refused; nothing was changed
    |  +- IllegalTransitionError      108  INTERNAL             no    an address state pair that is not in the table
    |  +- InvariantError              109  INTERNAL             no    a constraint that encodes I1-I9 refused
    |  +- SchemaVersionError          110  FAILED_PRECONDITION  no    the file was written by a newer release
    +- RuntimeUnreachableError        111  UNAVAILABLE          yes   CRI did not answer completely
    |  +- EventsUnsupportedError      112  UNIMPLEMENTED        no    the runtime has no event stream
    +- CloudError                     113  UNAVAILABLE          yes   EC2 or instance metadata failed
    |  +- ThrottledError              114  UNAVAILABLE          yes   EC2 asked us to slow down
    |  +- SubnetExhaustedError        115  RESOURCE_EXHAUSTED   yes   the subnet has no free address or /28
    |  +- EniLimitError               116  RESOURCE_EXHAUSTED   no    the ENI or the instance is full
    |  +- CloudNotFoundError          117  NOT_FOUND            no    the ENI does not exist (any more)
    |  +- CloudDeniedError            118  PERMISSION_DENIED    no    IAM does not allow the call
    +- SettingsError                  119  FAILED_PRECONDITION  no    settings contradict each other

Codes 1-99 are the CNI specification's, 100 and up ours. A message says what failed on which object; `details` says why, with
counts, and what to do next (I14). Third-party errors become one of these at the adapter; these become wire codes once, in
`rpc/codec.py`.
"""

from __future__ import annotations

from typing import ClassVar


class IpamError(Exception):
    """Root of the tree. `message` names the object, `details` the cause and the next step."""

    cni_code: ClassVar[int] = 100
    grpc_code: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}: {self.details}" if self.details else self.message


class InvalidRequestError(IpamError):
    """Identity, netns or arguments are malformed."""

    cni_code, grpc_code = 4, "INVALID_ARGUMENT"


class UndecodableConfigError(IpamError):
    """Standard input is not JSON."""

    cni_code, grpc_code = 6, "INVALID_ARGUMENT"


class InvalidConfigError(IpamError):
    """The network configuration is JSON but wrong."""

    cni_code, grpc_code = 7, "INVALID_ARGUMENT"


class IncompatibleVersionError(IpamError):
    """A cniVersion or an envelope protocol that we do not speak."""

    cni_code, grpc_code = 1, "FAILED_PRECONDITION"


class TryAgainError(IpamError):
    """The same request would succeed later."""

    cni_code, grpc_code, retryable = 11, "UNAVAILABLE", True


class PoolEmptyError(TryAgainError):
    """No address is assignable now; details carry the counts."""

    grpc_code = "RESOURCE_EXHAUSTED"


class NotServingError(TryAgainError):
    """The daemon is starting, restoring or draining."""


class DeadlineError(TryAgainError):
    """The caller's deadline passed or the caller left; the operation was rolled back."""

    grpc_code = "DEADLINE_EXCEEDED"


class BusyError(TryAgainError):
    """Too many requests at once, or another operation holds this sandbox."""

    grpc_code = "RESOURCE_EXHAUSTED"


class PluginNotAvailableError(IpamError):
    """STATUS: ADD requests are not served."""

    cni_code, grpc_code, retryable = 50, "UNAVAILABLE", True


class AttachmentConflictError(IpamError):
    """ADD for a key that another request (other netns or configuration) has attached."""

    cni_code, grpc_code = 101, "ALREADY_EXISTS"


class TombstonedError(IpamError):
    """ADD for a key whose DEL has been done (I4)."""

    cni_code, grpc_code = 102, "FAILED_PRECONDITION"


class UnknownAttachmentError(IpamError):
    """CHECK of a key that is not attached (CNI code 3, unknown container)."""

    cni_code, grpc_code = 3, "NOT_FOUND"


class CheckFailedError(IpamError):
    """The kernel's wiring of a sandbox differs from its record."""

    cni_code, grpc_code = 103, "FAILED_PRECONDITION"


class NetnsError(IpamError):
    """The network namespace is gone, or the path is not one."""

    cni_code, grpc_code = 104, "FAILED_PRECONDITION"


class WiringError(IpamError):
    """The kernel refused a netlink message; what was done has been undone."""

    cni_code, grpc_code, retryable = 105, "INTERNAL", True


class KernelDumpError(IpamError):
    """A dump was interrupted on every try; it is no evidence (I11)."""

    cni_code, grpc_code, retryable = 106, "UNAVAILABLE", True


class DatastoreError(IpamError):
    """SQLite refused; the transaction was rolled back and nothing was changed."""

    cni_code, grpc_code, retryable = 107, "INTERNAL", True


class IllegalTransitionError(DatastoreError):
    """A pair (state, event) that the transition table does not have."""

    cni_code, retryable = 108, False


class InvariantError(DatastoreError):
    """A constraint that encodes an invariant refused a change; the change did not happen."""

    cni_code, retryable = 109, False


class SchemaVersionError(DatastoreError):
    """The datastore was written by a newer release; it is left untouched."""

    cni_code, grpc_code, retryable = 110, "FAILED_PRECONDITION", False


class RuntimeUnreachableError(IpamError):
    """The container runtime did not give a complete answer; silence is not evidence (I11)."""

    cni_code, grpc_code, retryable = 111, "UNAVAILABLE", True


class EventsUnsupportedError(RuntimeUnreachableError):
    """The runtime has no event stream; re-listing takes its place."""

    cni_code, grpc_code, retryable = 112, "UNIMPLEMENTED", False


class CloudError(IpamError):
    """EC2 or instance metadata failed, or could not be reached."""

    cni_code, grpc_code, retryable = 113, "UNAVAILABLE", True


class ThrottledError(CloudError):
    """EC2 asked us to slow down (RequestLimitExceeded)."""

    cni_code = 114


class SubnetExhaustedError(CloudError):
    """The subnet has no free address (InsufficientFreeAddressesInSubnet) or no free /28 (InsufficientCidrBlocks)."""

    cni_code, grpc_code = 115, "RESOURCE_EXHAUSTED"


class EniLimitError(CloudError):
    """The ENI has no free slot, or the instance takes no further ENI."""

    cni_code, grpc_code, retryable = 116, "RESOURCE_EXHAUSTED", False


class CloudNotFoundError(CloudError):
    """The ENI does not exist (any more)."""

    cni_code, grpc_code, retryable = 117, "NOT_FOUND", False


class CloudDeniedError(CloudError):
    """IAM does not allow the call; details name the API."""

    cni_code, grpc_code, retryable = 118, "PERMISSION_DENIED", False


class SettingsError(IpamError):
    """Settings are malformed or contradict each other; details list every problem at once."""

    cni_code, grpc_code = 119, "FAILED_PRECONDITION"
