"""The failures of adapters: for each code the sentence and the next step. No other module has these sentences.

The class of the error determines the CNI code and whether the runtime may retry (`errors.py`). The code identifies the failure, and it
stays the same when the sentence is reworded. Names in braces are the fields of the error. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

from ipamd.model.errors import IpamError

E = TypeVar("E", bound=IpamError)


class FailureCode(StrEnum):
    """The kind of a failure: the value of `IpamError.failure`."""

    CHANGE_REFUSED = "change-refused"
    CHANGE_FAILED = "change-failed"
    CONSTRAINT_REFUSED = "constraint-refused"
    NO_DRIVER = "no-driver"
    FILE_OUT_OF_USE = "file-out-of-use"
    FILE_REPLACED = "file-replaced"
    NO_FREE_ADDRESS = "no-free-address"
    ADDRESS_UNKNOWN = "address-unknown"
    NO_EXTRA_ADDRESS = "no-extra-address"
    HAS_ADDRESS = "has-address"
    LEVEL_OUT_OF_REACH = "level-out-of-reach"
    SCHEMA_TOO_NEW = "schema-too-new"
    SCHEMA_TOO_OLD = "schema-too-old"
    FILE_OF_OTHER_FAMILY = "file-of-other-family"
    BOOT_ID_UNREADABLE = "boot-id-unreadable"
    FILE_NOT_OPENED = "file-not-opened"
    SPOOL_UNREADABLE = "spool-unreadable"
    SPOOL_LOCKED = "spool-locked"
    UNITS_NESTED = "units-nested"
    ADDRESS_NOT_RELEASABLE = "address-not-releasable"
    ADDRESSES_IN_USE = "addresses-in-use"
    ADDRESS_OUTSIDE_PREFIX = "address-outside-prefix"
    ADDRESS_STANDS_FOR_REST = "address-stands-for-rest"
    MEMORY_AHEAD_OF_DISK = "memory-ahead-of-disk"
    INTENT_OPEN = "intent-open"
    UPLINK_TABLE_WRONG = "uplink-table-wrong"
    UPLINK_TAKEN = "uplink-taken"
    INTENT_NOT_OPEN = "intent-not-open"
    NOT_ATTACHED = "not-attached"
    BEING_GIVEN = "being-given"
    ATTACHED_ALREADY = "attached-already"
    DELETED_BEFORE = "deleted-before"
    ADDRESS_ON_OTHER_ENI = "address-on-other-eni"
    OTHER_ADDRESS_NOT_RESERVED = "other-address-not-reserved"
    PRIMARY_IN_POOL = "primary-in-pool"
    PRIMARY_OF_SANDBOX = "primary-of-sandbox"
    PRIMARY_OF_OTHER_ENI = "primary-of-other-eni"
    ENI_UNKNOWN = "eni-unknown"
    ADDRESS_NOT_OF_PREFIX = "address-not-of-prefix"
    ADDRESS_IS_PRIMARY = "address-is-primary"
    ADDRESS_ELSEWHERE = "address-elsewhere"
    UNIT_ENDED = "unit-ended"
    ADDRESS_OF_UPLINK = "address-of-uplink"
    VALUE_WITHOUT_PLACE = "value-without-place"
    ADDRESS_RESERVED = "address-reserved"
    NO_ENI_LINK = "no-eni-link"
    NO_PRIMARY_LINK = "no-primary-link"
    LINK_NAMESPACE_UNKNOWN = "link-namespace-unknown"
    LINK_CHANGED = "link-changed"
    LINKS_CHANGED = "links-changed"
    OTHER_LINK_CHANGED = "other-link-changed"
    OTHER_LINK_NOT_TAKEN = "other-link-not-taken"
    UPLINK_NOT_MADE = "uplink-not-made"
    TABLE_TAKEN = "table-taken"
    VLAN_TAKEN = "vlan-taken"
    DUMP_INTERRUPTED = "dump-interrupted"
    DUMP_REFUSED = "dump-refused"
    STEP_REFUSED = "step-refused"
    NO_SOCKET = "no-socket"
    BATCH_NOT_SENT = "batch-not-sent"
    ANSWER_LOST = "answer-lost"
    NOTICE_FAILED = "notice-failed"
    NETNS_NOT_OPENED = "netns-not-opened"
    NETNS_OTHER_KIND = "netns-other-kind"
    NETNS_NOT_ENTERED = "netns-not-entered"
    NETNS_ENTRY_REFUSED = "netns-entry-refused"
    NETNS_NO_NSFS = "netns-no-nsfs"
    NETNS_GONE = "netns-gone"
    NETNS_ORDINARY_FILE = "netns-ordinary-file"
    NFT_REFUSED = "nft-refused"
    NFT_NOT_UNDERSTOOD = "nft-not-understood"
    NFT_WITHOUT_CONTEXT = "nft-without-context"
    NFT_MISSING = "nft-missing"
    TABLE_UNREADABLE = "table-unreadable"
    INCOMING_LINK_MISSING = "incoming-link-missing"
    HOST_NETNS_ASKED = "host-netns-asked"
    ENI_WITHOUT_TABLE = "eni-without-table"
    NO_VPC_CIDR = "no-vpc-cidr"
    SYSCTL_REFUSED = "sysctl-refused"
    HOST_NETNS = "host-netns"
    LINK_NOT_OURS = "link-not-ours"
    VETH_ASTRAY = "veth-astray"
    LOOKUP_REFUSED = "lookup-refused"
    RUNTIME_SILENT = "runtime-silent"
    NO_RUNTIME_SOCKET = "no-runtime-socket"
    NO_EVENT_STREAM = "no-event-stream"
    NO_CRI = "no-cri"
    RUNTIME_ANSWER_TOO_LARGE = "runtime-answer-too-large"
    EVENT_STREAM_ENDED = "event-stream-ended"
    RUNTIME_ANSWER_CUT_OFF = "runtime-answer-cut-off"
    EVENT_STREAM_ENDS_AT_ONCE = "event-stream-ends-at-once"
    SANDBOX_WITHOUT_ID = "sandbox-without-id"
    EVENT_STREAM_NOT_OPENED = "event-stream-not-opened"
    DIRECTORY_SERVED = "directory-served"
    NO_DIRECTORY = "no-directory"
    DIRECTORY_OWNER = "directory-owner"
    DIRECTORY_OF_OTHERS = "directory-of-others"
    DIRECTORY_NOT_MADE = "directory-not-made"
    DIRECTORY_NOT_CLOSED = "directory-not-closed"
    DIRECTORY_IS_LINK = "directory-is-link"
    NO_SOCKET_FILE = "no-socket-file"
    SOCKET_TAKEN = "socket-taken"
    SOCKET_REFUSED = "socket-refused"
    SOCKET_UNSEEN = "socket-unseen"
    SOCKET_UNCLEAR = "socket-unclear"
    FILE_TOO_LARGE = "file-too-large"
    NETWORK_FILE_UNREADABLE = "network-file-unreadable"
    FILE_NOT_SET_ASIDE = "file-not-set-aside"
    SETTINGS_WRONG_UNTIL_RESTART = "settings-wrong-until-restart"
    SETTINGS_WRONG = "settings-wrong"
    FILE_NOT_RENAMED = "file-not-renamed"
    FILE_UNSEEN = "file-unseen"
    PLUGIN_SILENT = "plugin-silent"
    PLUGIN_FAILED = "plugin-failed"
    PLUGIN_NOT_RUN = "plugin-not-run"
    PLUGIN_ANSWER_ODD = "plugin-answer-odd"
    LISTEN_ADDRESS_WRONG = "listen-address-wrong"
    PORT_TAKEN = "port-taken"
    NODE_FILE_TOO_LARGE = "node-file-too-large"
    NODE_FILE_VERSION = "node-file-version"
    NODE_FILE_NO_LIST = "node-file-no-list"
    ENTRY_NO_OBJECT = "entry-no-object"
    ENTRY_METADATA = "entry-metadata"
    ENTRY_ADDRESSES = "entry-addresses"
    ENTRY_NAME = "entry-name"
    ENTRY_NUMBER = "entry-number"
    NODE_FILE_NO_JSON = "node-file-no-json"
    ADDRESS_GIVEN_TWICE = "address-given-twice"
    ENTRY_ADDRESS = "entry-address"
    NODE_FILE_UNREADABLE = "node-file-unreadable"
    NODE_FILE_UNSEEN = "node-file-unseen"
    CLEAN_UP_DAEMON_RUNS = "clean-up-daemon-runs"
    CLEAN_UP_NO_CONFLIST = "clean-up-no-conflist"
    CLEAN_UP_NOT_SERVED = "clean-up-not-served"
    CLEAN_UP_CONFLIST_STAYS = "clean-up-conflist-stays"
    EXPORT_NOT_READY = "export-not-ready"
    EXPORT_OTHER_SERVES = "export-other-serves"
    EXPORT_OTHER_RAN = "export-other-ran"
    EXPORT_POD_SNAT = "export-pod-snat"
    EXPORT_PINNED = "export-pinned"
    EXPORT_WIRING_INCOMPLETE = "export-wiring-incomplete"
    EXPORT_ADD_AT_WORK = "export-add-at-work"
    POOL_NOT_PLANNED = "pool-not-planned"
    INSTANCE_TYPE_UNKNOWN = "instance-type-unknown"
    CNI_VERSION_UNKNOWN = "cni-version-unknown"
    VERB_TOO_NEW = "verb-too-new"
    PREV_RESULT_DNS = "prev-result-dns"
    PREV_RESULT_NESTED = "prev-result-nested"
    PREV_RESULT_ENTRY = "prev-result-entry"
    ILLEGAL_TRANSITION = "illegal-transition"
    SEVERAL_CARDS = "several-cards"
    CALL_HELD_BACK = "call-held-back"
    MESSAGE_REFUSED = "message-refused"
    METADATA_REFUSED = "metadata-refused"
    METADATA_MALFORMED = "metadata-malformed"
    METADATA_INCOMPLETE = "metadata-incomplete"
    METADATA_LAGS = "metadata-lags"
    METADATA_NO_TOKEN = "metadata-no-token"  # noqa: S105  # a code
    METADATA_UNREACHABLE = "metadata-unreachable"
    METADATA_ANSWER_ODD = "metadata-answer-odd"
    METADATA_UNANSWERED = "metadata-unanswered"
    METADATA_ENDPOINT = "metadata-endpoint"
    EC2_REFUSED = "ec2-refused"
    EC2_UNANSWERED = "ec2-unanswered"
    EC2_UNREADABLE = "ec2-unreadable"
    EC2_UNSENT = "ec2-unsent"
    EC2_NOT_CALLED = "ec2-not-called"
    EC2_ANSWER_INCOMPLETE = "ec2-answer-incomplete"
    EC2_LIST_ENDLESS = "ec2-list-endless"
    VETH_NOT_CREATED = "veth-not-created"
    VETH_NAME_OF_STRANGER = "veth-name-of-stranger"
    INTERFACE_EXISTS = "interface-exists"
    EC2_NOT_ATTACHED = "ec2-not-attached"
    TARGET_NEGATIVE = "target-negative"
    RELEASE_HOLD_NOT_POSITIVE = "release-hold-not-positive"
    SPARE_DELAY_NEGATIVE = "spare-delay-negative"
    CONFLIST_NOT_WRITTEN = "conflist-not-written"
    CONFLIST_UNREADABLE = "conflist-unreadable"
    SHARED_FILE_REFUSED = "shared-file-refused"
    NODE_FILE_WRONG = "node-file-wrong"
    ENTRY_KEY = "entry-key"
    LIST_NOT_BELIEVED = "list-not-believed"
    NETWORK_FILE_WRONG = "network-file-wrong"
    ANNOTATIONS_FORM = "annotations-form"
    ANNOTATION_VALUES = "annotation-values"
    INVENTORY_CALLS_SPENT = "inventory-calls-spent"
    INVENTORY_SUBNET_UNKNOWN = "inventory-subnet-unknown"
    INVENTORY_WITHOUT_SUBNETS = "inventory-without-subnets"
    INVENTORY_STATE_UNREADABLE = "inventory-state-unreadable"
    POOL_UNKNOWN = "pool-unknown"
    EXPORT_POD_POOLS = "export-pod-pools"
    EXPORT_MULTI_NIC = "export-multi-nic"


class FailureMessage(NamedTuple):
    """The sentences of a failure. `message`: what failed, and on which object. `details`: the cause, and the next step."""

    message: str
    details: str = ""


FAILURES: Mapping[FailureCode, FailureMessage] = {
    FailureCode.CHANGE_REFUSED: FailureMessage("{subject}: {cause}", "{result}: {advice}"),
    FailureCode.CHANGE_FAILED: FailureMessage("{subject}: {cause}", "nothing was changed; try again"),
    FailureCode.CONSTRAINT_REFUSED: FailureMessage("{subject}: a constraint refused", "{cause}"),
    FailureCode.NO_DRIVER: FailureMessage("{path} is open without a driver", "a defect of ours"),
    FailureCode.FILE_OUT_OF_USE: FailureMessage("{path} is out of use", "{cause}"),
    FailureCode.FILE_REPLACED: FailureMessage(
        "{path} or its WAL was removed or replaced while in use",
        "a change would not survive a restart: restart ipamd, which rebuilds from the kernel and CRI",
    ),
    FailureCode.NO_FREE_ADDRESS: FailureMessage("no address is free for sandbox {sandbox}", "{counts}"),
    FailureCode.ADDRESS_UNKNOWN: FailureMessage(
        "address {address} is not recorded", "I7: EC2 has not confirmed it on an ENI of this node"
    ),
    FailureCode.NO_EXTRA_ADDRESS: FailureMessage(
        "no address of {network} is free for sandbox {sandbox}",
        "cause: all {taken} for {ifname} are taken, {cooling} of them cooling; next: {step}",
    ),
    FailureCode.HAS_ADDRESS: FailureMessage("sandbox {sandbox} has {address} already", "I1: one address per attachment"),
    FailureCode.LEVEL_OUT_OF_REACH: FailureMessage(
        "{path} is of level {level}: this release cannot take it to {wanted}",
        "this release knows levels {oldest} to {newest}; a later one may know more",
    ),
    FailureCode.SCHEMA_TOO_NEW: FailureMessage(
        "{path} was written by a newer release, and this one reads files up to level {level}",
        (
            "run that release or a later one; or, with that release, `{command}`; or drain the node and reboot "
            "it, which starts an empty datastore"
        ),
    ),
    FailureCode.SCHEMA_TOO_OLD: FailureMessage(
        "{path} is of level {level}, and this release takes over level {oldest} and later",
        (
            "drain the node and reboot it, which starts an empty datastore; or run what wrote the file, then what"
            " takes it to level {oldest}; nothing of the file was changed"
        ),
    ),
    FailureCode.FILE_OF_OTHER_FAMILY: FailureMessage(
        "{path} is of a pool of {family}, and {count} of it live: {sandboxes}",
        "drain the node first, or run what wrote it; nothing of the file was changed",
    ),
    FailureCode.BOOT_ID_UNREADABLE: FailureMessage("the boot ID cannot be read from {path}", "{cause}"),
    FailureCode.FILE_NOT_OPENED: FailureMessage("{path} cannot be opened: {cause}", "check the run directory"),
    FailureCode.SPOOL_UNREADABLE: FailureMessage("{path}: {cause}", "check the run directory and its file system"),
    FailureCode.SPOOL_LOCKED: FailureMessage(
        "the spool lock {path} was not free for {wait_s} s",
        "a vpc-cni process holds it: `fuser {path}` names it; DELs stay spooled until then",
    ),
    FailureCode.UNITS_NESTED: FailureMessage(
        "a unit of work is open in this thread already", "a defect of ours: units of work do not nest"
    ),
    FailureCode.ADDRESS_NOT_RELEASABLE: FailureMessage("{address} of {eni} cannot be released: it is {problem}", "I2"),
    FailureCode.ADDRESSES_IN_USE: FailureMessage("addresses cannot be removed: {count} in use", "I2: {addresses}"),
    FailureCode.ADDRESS_OUTSIDE_PREFIX: FailureMessage(
        "address {address} is not in a /{length} named {prefix}", "EC2 has no other"
    ),
    FailureCode.ADDRESS_STANDS_FOR_REST: FailureMessage(
        "address {address} stands for the rest of {prefix}", "it is never assigned"
    ),
    FailureCode.MEMORY_AHEAD_OF_DISK: FailureMessage(
        "address {address} is {state} in memory but not on disk",
        "nothing was changed; `ipamctl audit` compares them all; restarting ipamd reads the disk again",
    ),
    FailureCode.INTENT_OPEN: FailureMessage("intent {intent} is open already", "I9: each has its own ID"),
    FailureCode.UPLINK_TABLE_WRONG: FailureMessage("sandbox {sandbox} has no uplink, or another table than its VLAN's"),
    FailureCode.UPLINK_TAKEN: FailureMessage("sandbox {sandbox} cannot be attached: {cause}", "I1"),
    FailureCode.INTENT_NOT_OPEN: FailureMessage("intent {intent} is not open", "I9"),
    FailureCode.NOT_ATTACHED: FailureMessage("sandbox {sandbox} is not attached"),
    FailureCode.BEING_GIVEN: FailureMessage("{address} is reserved for sandbox {sandbox}", "I1"),
    FailureCode.ATTACHED_ALREADY: FailureMessage("sandbox {sandbox} is attached with {address}", "I1"),
    FailureCode.DELETED_BEFORE: FailureMessage("sandbox {sandbox} cannot be attached: its DEL was done", "I4"),
    FailureCode.ADDRESS_ON_OTHER_ENI: FailureMessage("address {address} is on {eni}, not on {wanted_eni}", "I7"),
    FailureCode.OTHER_ADDRESS_NOT_RESERVED: FailureMessage("{reserved_for}", "I1"),
    FailureCode.PRIMARY_IN_POOL: FailureMessage(
        "primary address {address} of {eni} is in the pool", "I6: the primary address of an ENI is never given to a sandbox"
    ),
    FailureCode.PRIMARY_OF_SANDBOX: FailureMessage("primary address {address} of {eni} is that of sandbox {sandbox}", "I6"),
    FailureCode.PRIMARY_OF_OTHER_ENI: FailureMessage("primary address {address} of {eni} is still recorded as that of {holder}"),
    FailureCode.ENI_UNKNOWN: FailureMessage("ENI {eni} is not recorded", "I7: an address needs a recorded ENI"),
    FailureCode.ADDRESS_NOT_OF_PREFIX: FailureMessage(
        "{prefix} is not recorded by address {address}", "only by its last address"
    ),
    FailureCode.ADDRESS_IS_PRIMARY: FailureMessage(
        "address {address} is the primary one of {holder}", "I6: the primary address of an ENI is never given to a sandbox"
    ),
    FailureCode.ADDRESS_ELSEWHERE: FailureMessage(
        "address {address} is on {eni}, not on {wanted_eni}", "I1: remove it there before adding it here"
    ),
    FailureCode.UNIT_ENDED: FailureMessage(
        "the unit of work has ended", "a change came after its transaction; nothing was changed"
    ),
    FailureCode.ADDRESS_OF_UPLINK: FailureMessage("address {address} is that of sandbox {sandbox} by its uplink", "I1"),
    FailureCode.VALUE_WITHOUT_PLACE: FailureMessage("{method}: a value cannot be stored", "{cause}"),
    FailureCode.ADDRESS_RESERVED: FailureMessage("address {address} is reserved for {owner}, not for {sandbox}", "I1"),
    FailureCode.NO_ENI_LINK: FailureMessage(
        "no link with MAC {mac} appeared within {timeout_s} s",
        "EC2 reports the ENI as attached, but the node's driver does not show its link yet; it is retried",
    ),
    FailureCode.NO_PRIMARY_LINK: FailureMessage(
        "the primary ENI's link with MAC {mac} is missing", "is the daemon in the host's network namespace (hostNetwork: true)?"
    ),
    FailureCode.LINK_NAMESPACE_UNKNOWN: FailureMessage("the namespace behind {link} is not in {directory}", "it is read again"),
    FailureCode.LINK_CHANGED: FailureMessage("link {link} changed while it was read", "it is read again"),
    FailureCode.LINKS_CHANGED: FailureMessage("{link} or {uplink} changed while it was read", "it is read again"),
    FailureCode.OTHER_LINK_CHANGED: FailureMessage(
        "link {index} of an extra leg of {sandbox} changed while it was read", "it is read again"
    ),
    FailureCode.OTHER_LINK_NOT_TAKEN: FailureMessage(
        "link {link} of an extra leg of {sandbox} is not taken over: {cause}", "delete the pod"
    ),
    FailureCode.UPLINK_NOT_MADE: FailureMessage(
        "{work}: VLAN link {link} on {parent} could not be created", "another process creates it too"
    ),
    FailureCode.TABLE_TAKEN: FailureMessage(
        "VLAN {vlan}: another program uses table {table}: {entry}",
        "see `ip rule` and `ip route show table {table}`; let that program have another table, or delete the pod",
    ),
    FailureCode.VLAN_TAKEN: FailureMessage("VLAN {vlan} leads to {link} of {sandbox}, {address}", "{advice}"),
    FailureCode.DUMP_INTERRUPTED: FailureMessage(
        "{step} was interrupted {tries} times",
        "links, routes or rules of the node change without pause; nothing was concluded; it is retried",
    ),
    FailureCode.DUMP_REFUSED: FailureMessage("{step} failed", "the kernel answered {cause}"),
    FailureCode.STEP_REFUSED: FailureMessage("{work}: {step} failed", "{cause}"),
    FailureCode.NO_SOCKET: FailureMessage("no netlink socket could be opened", "{cause}; retry"),
    FailureCode.BATCH_NOT_SENT: FailureMessage("{step}: the batch was not sent", "{cause}; it is retried"),
    FailureCode.ANSWER_LOST: FailureMessage(
        "{step}: the kernel's answer was lost", "{cause} after at most {wait_s} s; it is retried"
    ),
    FailureCode.NOTICE_FAILED: FailureMessage("waiting for the kernel's notice failed", "{cause}"),
    FailureCode.NETNS_NOT_OPENED: FailureMessage(
        "network namespace {path} could not be opened", "{cause}; this says nothing about the sandbox; retry"
    ),
    FailureCode.NETNS_OTHER_KIND: FailureMessage("{path} is not a network namespace", "it is a namespace of another kind"),
    FailureCode.NETNS_NOT_ENTERED: FailureMessage("the network namespace could not be entered", "{path}: {cause}; retry"),
    FailureCode.NETNS_ENTRY_REFUSED: FailureMessage(
        "the network namespace could not be entered", "setns: {cause}; the daemon needs CAP_SYS_ADMIN"
    ),
    FailureCode.NETNS_NO_NSFS: FailureMessage("{path} is not a network namespace", "its file is not in the file system nsfs"),
    FailureCode.NETNS_GONE: FailureMessage(
        "network namespace {path} cannot be opened",
        "{cause}; the sandbox has gone, or the path is not visible to the daemon (hostPath mount)",
    ),
    FailureCode.NETNS_ORDINARY_FILE: FailureMessage("{path} is not a network namespace", "it is an ordinary file"),
    FailureCode.NFT_REFUSED: FailureMessage("nftables refused the transaction; nothing was changed", "{cause}"),
    FailureCode.NFT_NOT_UNDERSTOOD: FailureMessage("nftables' answer to `{command}` was not understood", "{cause}"),
    FailureCode.NFT_WITHOUT_CONTEXT: FailureMessage(
        "nftables context could not be created", "libnftables: nft_ctx_new returned NULL"
    ),
    FailureCode.NFT_MISSING: FailureMessage(
        "{library} is missing: no SNAT and no connection marks on this node",
        "install the package {package} into the daemon's image ({cause})",
    ),
    FailureCode.TABLE_UNREADABLE: FailureMessage("{table} could not be read", "{cause}"),
    FailureCode.INCOMING_LINK_MISSING: FailureMessage("link {link} is missing", "no packet can come by it"),
    FailureCode.HOST_NETNS_ASKED: FailureMessage("{netns} is the host's own network namespace", "it is no sandbox's"),
    FailureCode.ENI_WITHOUT_TABLE: FailureMessage(
        "{eni} has no table of its own ({table})", "the primary ENI uses main, which ipamd neither fills nor clears"
    ),
    FailureCode.NO_VPC_CIDR: FailureMessage(
        "the nftables table was not made", "no CIDR of the VPC is known, and without one traffic within the VPC would be SNATed"
    ),
    FailureCode.SYSCTL_REFUSED: FailureMessage(
        "sysctl {sysctl} could not be set to {wanted}", "{cause}; run `{command}` on the node, or let the init container do it"
    ),
    FailureCode.HOST_NETNS: FailureMessage(
        "{netns} is the host's own network namespace",
        "a sandbox on the host's network is not wired; the runtime should not have called",
    ),
    FailureCode.LINK_NOT_OURS: FailureMessage(
        "link {link} is not the host veth of {sandbox}: it is left alone",
        "kind {kind}, alias {alias!r}; see `ip -d link show {link}`",
    ),
    FailureCode.VETH_ASTRAY: FailureMessage("{link} does not lead into {netns}"),
    FailureCode.LOOKUP_REFUSED: FailureMessage("wiring of {sandbox}: {step} failed", "{cause}"),
    FailureCode.RUNTIME_SILENT: FailureMessage(
        "the container runtime at {socket} did not answer {call}", "{cause}; nothing is freed until it answers"
    ),
    FailureCode.NO_RUNTIME_SOCKET: FailureMessage(
        "no CRI socket at {sockets}",
        "{problems}; start the runtime, mount its socket, or set VPC_IPAMD_CRI_SOCKET (or VPC_IPAMD_CRI_SOCKET=off)",
    ),
    FailureCode.NO_EVENT_STREAM: FailureMessage(
        "the runtime at {socket} does not know {call}", "re-listing takes its place (containerd < 1.7)"
    ),
    FailureCode.NO_CRI: FailureMessage(
        "what listens at {socket} serves no CRI v1 ({call} is not known there)",
        "enable the runtime's CRI plugin, or set VPC_IPAMD_CRI_SOCKET; nothing is freed until it answers",
    ),
    FailureCode.RUNTIME_ANSWER_TOO_LARGE: FailureMessage(
        "the answer of the container runtime at {socket} to {call} is larger than {limit_mib} MiB",
        "{cause}; remove exited sandboxes; nothing is freed until a whole list fits",
    ),
    FailureCode.EVENT_STREAM_ENDED: FailureMessage(
        "the container runtime at {socket} ended the event stream", "it is opened again"
    ),
    FailureCode.RUNTIME_ANSWER_CUT_OFF: FailureMessage(
        "the container runtime at {socket} did not answer {call} to the end",
        "its message was cut off; nothing is freed until a whole one comes",
    ),
    FailureCode.EVENT_STREAM_ENDS_AT_ONCE: FailureMessage(
        "the runtime at {socket} ends the event stream at once", "re-listing takes its place (CRI-O: enable_pod_events is off)"
    ),
    FailureCode.SANDBOX_WITHOUT_ID: FailureMessage("the runtime listed a sandbox without a usable ID", "{cause}"),
    FailureCode.EVENT_STREAM_NOT_OPENED: FailureMessage(
        "the event stream of {socket} cannot be opened: {cause}", "a thread is missing; it is retried"
    ),
    FailureCode.DIRECTORY_SERVED: FailureMessage(
        "another vpc-ipamd serves {path}", "stop it first; two daemons must not share a node"
    ),
    FailureCode.NO_DIRECTORY: FailureMessage("{path} is not a directory", "symbolic links are not followed; remove it"),
    FailureCode.DIRECTORY_OWNER: FailureMessage("{path} is owned by user {user}", "expected {own_user}; remove it"),
    FailureCode.DIRECTORY_OF_OTHERS: FailureMessage(
        "{path} is somebody else's directory",
        "it has the directories {directories}; set VPC_IPAMD_RUN_DIR to a directory that nobody else uses",
    ),
    FailureCode.DIRECTORY_NOT_MADE: FailureMessage("cannot make the run directory {path}: {cause}", "{advice}"),
    FailureCode.DIRECTORY_NOT_CLOSED: FailureMessage("cannot keep others out of {path}: {cause}", "mount it writable"),
    FailureCode.DIRECTORY_IS_LINK: FailureMessage("{path} is a link", "the plugin follows none: put the directory back"),
    FailureCode.NO_SOCKET_FILE: FailureMessage("{path} exists and is not a socket", "remove it, or {advice}"),
    FailureCode.SOCKET_TAKEN: FailureMessage("somebody listens on {path}", "{advice}"),
    FailureCode.SOCKET_REFUSED: FailureMessage("cannot listen on {path}", "{cause}; {advice}"),
    FailureCode.SOCKET_UNSEEN: FailureMessage("cannot look at {path}", "{cause}"),
    FailureCode.SOCKET_UNCLEAR: FailureMessage("cannot tell whether somebody listens on {path}", "{cause}"),
    FailureCode.FILE_TOO_LARGE: FailureMessage("{path} is larger than {limit} bytes"),
    FailureCode.NETWORK_FILE_UNREADABLE: FailureMessage(
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG is true, and {path} cannot be read: {cause}",
        "mount the file there or set VPC_IPAMD_NETWORK_FILE; `ipamctl convert-eniconfig` makes it of ENIConfig objects",
    ),
    FailureCode.FILE_NOT_SET_ASIDE: FailureMessage("{path} cannot be set aside: {cause}", "check the run directory"),
    FailureCode.SETTINGS_WRONG_UNTIL_RESTART: FailureMessage(
        "wrong settings until a restart ({count})", "{problems}; needs a restart first: {waiting}"
    ),
    FailureCode.SETTINGS_WRONG: FailureMessage("wrong settings ({count})", "{problems}"),
    FailureCode.FILE_NOT_RENAMED: FailureMessage("{problem}", "it cannot be renamed ({cause}): remove it"),
    FailureCode.FILE_UNSEEN: FailureMessage("{path} cannot be looked at: {cause}", "remove it"),
    FailureCode.PLUGIN_SILENT: FailureMessage(
        "{path} gave no answer to VERSION of at most {limit} bytes within {wait_s} s", "{advice}"
    ),
    FailureCode.PLUGIN_FAILED: FailureMessage("{path} ended with {status} when asked VERSION, and said: {answer}", "{advice}"),
    FailureCode.PLUGIN_NOT_RUN: FailureMessage("{path} cannot be run: {cause}", "{advice}"),
    FailureCode.PLUGIN_ANSWER_ODD: FailureMessage("{path} was asked VERSION: {cause}; it said: {answer}", "{advice}"),
    FailureCode.LISTEN_ADDRESS_WRONG: FailureMessage("{variable}={address!r}", "expected host:port or off"),
    FailureCode.PORT_TAKEN: FailureMessage("cannot serve on {address}: {cause}", "free the port or set {variable} to off"),
    FailureCode.NODE_FILE_TOO_LARGE: FailureMessage("it has {size} bytes", "at most {limit} are read"),
    FailureCode.NODE_FILE_VERSION: FailureMessage("its version is {version!r}", "this release reads {known!r}"),
    FailureCode.NODE_FILE_NO_LIST: FailureMessage("its allocations are not a list", "of at most {limit} entries"),
    FailureCode.ENTRY_NO_OBJECT: FailureMessage("{entry} is not an object"),
    FailureCode.ENTRY_METADATA: FailureMessage("{entry} has metadata that is not an object"),
    FailureCode.ENTRY_ADDRESSES: FailureMessage("{entry} has {addresses}"),
    FailureCode.ENTRY_NAME: FailureMessage("{entry} has no {name} of at most {limit} characters"),
    FailureCode.ENTRY_NUMBER: FailureMessage("{entry} has a {name} that is not a number"),
    FailureCode.NODE_FILE_NO_JSON: FailureMessage("it is not JSON", "{cause}"),
    FailureCode.ADDRESS_GIVEN_TWICE: FailureMessage("it gives {address} to {owner} and to {sandbox}"),
    FailureCode.ENTRY_ADDRESS: FailureMessage("{entry} has the address {address!r}", "{cause}"),
    FailureCode.NODE_FILE_UNREADABLE: FailureMessage("{path} cannot be read", "{cause}"),
    FailureCode.NODE_FILE_UNSEEN: FailureMessage("{path} cannot be looked at", "{cause}"),
    FailureCode.CLEAN_UP_DAEMON_RUNS: FailureMessage(
        "a vpc-ipamd runs in {path}", "`ipamctl export` gives the node back; then take vpc-ipamd off it"
    ),
    FailureCode.CLEAN_UP_NO_CONFLIST: FailureMessage(
        "the node has not gone back: amazon-vpc-cni-k8s has no conflist at {path}",
        "let aws-node come first, after `ipamctl export`",
    ),
    FailureCode.CLEAN_UP_NOT_SERVED: FailureMessage(
        "the node has not gone back: amazon-vpc-cni-k8s does not answer on {socket}, nor on 127.0.0.1:50051",
        "wait until aws-node is ready: until then our tables translate what pods send",
    ),
    FailureCode.CLEAN_UP_CONFLIST_STAYS: FailureMessage("{path} cannot be removed: {cause}", "remove it by hand"),
    FailureCode.EXPORT_NOT_READY: FailureMessage("the daemon is not ready", "its rows may not be whole; see `ipamctl status`"),
    FailureCode.EXPORT_OTHER_SERVES: FailureMessage("amazon-vpc-cni-k8s serves {listener} already", "{advice}"),
    FailureCode.EXPORT_OTHER_RAN: FailureMessage(
        "amazon-vpc-cni-k8s has run here since we last read or wrote its file", "{advice}"
    ),
    FailureCode.EXPORT_POD_SNAT: FailureMessage(
        "amazon-vpc-cni-k8s knows no SNAT by pod, and would change the address with which these are seen: {sandboxes}",
        "delete these pods first",
    ),
    FailureCode.EXPORT_PINNED: FailureMessage(
        "amazon-vpc-cni-k8s keeps no address for a pod, and these asked for theirs: {sandboxes}",
        "delete these pods first",
    ),
    FailureCode.EXPORT_WIRING_INCOMPLETE: FailureMessage("the wiring of sandboxes is not complete", "{missing}"),
    FailureCode.EXPORT_ADD_AT_WORK: FailureMessage("an ADD is still at work", "it ends within a minute"),
    FailureCode.POOL_NOT_PLANNED: FailureMessage("the pool has not been planned yet", "the instance's limits are not known yet"),
    FailureCode.INSTANCE_TYPE_UNKNOWN: FailureMessage(
        "instance type {instance_type!r} is not in the built-in table", "check its spelling, as in m5.large"
    ),
    FailureCode.CNI_VERSION_UNKNOWN: FailureMessage("cniVersion {version!r} is not supported", "supported: {supported}"),
    FailureCode.VERB_TOO_NEW: FailureMessage("{verb} came with cniVersion {since}", "the request says {version}"),
    FailureCode.PREV_RESULT_DNS: FailureMessage("prevResult.dns is not an object"),
    FailureCode.PREV_RESULT_NESTED: FailureMessage("prevResult is nested deeper than {limit} levels"),
    FailureCode.PREV_RESULT_ENTRY: FailureMessage("prevResult.{section}[{index}] is not valid", "{wanted}"),
    FailureCode.ILLEGAL_TRANSITION: FailureMessage(
        "address {address} cannot {event} while {state}",
        "this is a defect in vpc-ipamd: the operation was stopped and nothing was changed; please report it",
    ),
    FailureCode.SEVERAL_CARDS: FailureMessage(
        "several network cards are not served", "remove the annotation nicConfig from the pod"
    ),
    FailureCode.CALL_HELD_BACK: FailureMessage(
        "{api} is held back by this node's own call budget",
        "{rate_per_s} calls/s after throttled answers; it recovers with each success, try again later",
    ),
    FailureCode.MESSAGE_REFUSED: FailureMessage("{step} failed", "{cause}"),
    FailureCode.METADATA_REFUSED: FailureMessage("instance metadata /latest/{path} failed", "{status}: {cause}"),
    FailureCode.METADATA_MALFORMED: FailureMessage(
        "instance metadata /latest/{path} failed",
        "the value is malformed ({value}); check what AWS_EC2_METADATA_SERVICE_ENDPOINT points to",
    ),
    FailureCode.METADATA_INCOMPLETE: FailureMessage(
        "instance metadata /latest/{path} failed",
        "it names no interface, and every instance has one; metadata is not up to date yet, or is not EC2's",
    ),
    FailureCode.METADATA_LAGS: FailureMessage(
        "instance metadata /latest/{path} failed",
        "404: the ENI is gone, or metadata is not up to date yet; it is read again",
    ),
    FailureCode.METADATA_NO_TOKEN: FailureMessage(
        "instance metadata /latest/{path} failed", "it is no token; check AWS_EC2_METADATA_SERVICE_ENDPOINT={endpoint}"
    ),
    FailureCode.METADATA_UNREACHABLE: FailureMessage(
        "instance metadata /latest/{path} failed",
        (
            "no connection to {endpoint} ({cause}); is this an EC2 instance, and does the pod use hostNetwork or "
            "the instance a hop limit of 2?"
        ),
    ),
    FailureCode.METADATA_ANSWER_ODD: FailureMessage(
        "instance metadata /latest/{path} failed",
        "{cause}; check what AWS_EC2_METADATA_SERVICE_ENDPOINT={endpoint} points to",
    ),
    FailureCode.METADATA_UNANSWERED: FailureMessage(
        "instance metadata /latest/{path} failed",
        (
            "no answer from {endpoint} ({cause}); a PUT that is never answered means a hop limit of 1 between pod"
            " and host: set it to 2"
        ),
    ),
    FailureCode.METADATA_ENDPOINT: FailureMessage(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT={endpoint!r} is not usable",
        "it must be an http:// URL with a host; leave it empty on EC2",
    ),
    FailureCode.EC2_REFUSED: FailureMessage("EC2 {operation} failed for {subject}", "{cause}; {step}"),
    FailureCode.EC2_UNANSWERED: FailureMessage("EC2 {operation} was not answered for {subject}", "{cause}; {step}"),
    FailureCode.EC2_UNREADABLE: FailureMessage(
        "the answer to EC2 {operation} for {subject} is not one of EC2's", "{cause}; {step}"
    ),
    FailureCode.EC2_UNSENT: FailureMessage("EC2 {operation} could not be sent for {subject}", "{cause}; {step}"),
    FailureCode.EC2_NOT_CALLED: FailureMessage("EC2 {operation} was not called for {subject}", "{cause}; {step}"),
    FailureCode.EC2_ANSWER_INCOMPLETE: FailureMessage(
        "EC2's answer about {subject} is incomplete",
        "{part} is missing or malformed; nothing was concluded from it; check AWS_EC2_ENDPOINT if it is set",
    ),
    FailureCode.EC2_LIST_ENDLESS: FailureMessage(
        "EC2's list of {subject} does not end",
        "{pages} pages named a next one; nothing was concluded from them; check AWS_EC2_ENDPOINT if it is set",
    ),
    FailureCode.VETH_NOT_CREATED: FailureMessage("wiring of {sandbox}: {step} failed", "{cause}"),
    FailureCode.VETH_NAME_OF_STRANGER: FailureMessage(
        "wiring of {sandbox}: {step} failed",
        "the host has a link {link} that is not this sandbox's (alias {alias!r}); see `ip -d link show {link}`",
    ),
    FailureCode.INTERFACE_EXISTS: FailureMessage(
        "wiring of {sandbox}: {step} failed", "{netns} has an interface {ifname} already: {cause}"
    ),
    FailureCode.EC2_NOT_ATTACHED: FailureMessage(
        "ENI {eni} is not attached after {wait_s} s", "EC2 says: {status}; it is described again later"
    ),
    FailureCode.TARGET_NEGATIVE: FailureMessage("{name} is {value}", "targets and caps must not be negative"),
    FailureCode.RELEASE_HOLD_NOT_POSITIVE: FailureMessage("release_hold_s is {value}", "it takes a number of seconds above 0"),
    FailureCode.SPARE_DELAY_NEGATIVE: FailureMessage("spare_eni_delay_s is {value}", "it takes a number of seconds, 0 at least"),
    FailureCode.CONFLIST_NOT_WRITTEN: FailureMessage("cannot write {path}: {cause}", "mount the CNI configuration directory"),
    FailureCode.CONFLIST_UNREADABLE: FailureMessage("cannot read {path}: {cause}", "mount the CNI configuration directory"),
    FailureCode.SHARED_FILE_REFUSED: FailureMessage("{problem}", "{cause}{advice}"),
    FailureCode.NODE_FILE_WRONG: FailureMessage("{path} cannot be used: {problem}", "{cause}"),
    FailureCode.ENTRY_KEY: FailureMessage("{entry}: {problem}", "{cause}"),
    FailureCode.LIST_NOT_BELIEVED: FailureMessage(
        "implausible: none of {count} wired sandboxes is in a list of {listed}", "nothing is freed on such a list"
    ),
    FailureCode.NETWORK_FILE_WRONG: FailureMessage("{path} has {count}", "{problems}"),
    FailureCode.ANNOTATIONS_FORM: FailureMessage("{key} must be an object"),
    FailureCode.POOL_UNKNOWN: FailureMessage("the network file has no pool {pool}", "pools: {known}"),
    FailureCode.EXPORT_POD_POOLS: FailureMessage(
        "amazon-vpc-cni-k8s knows no pools, and would give addresses of these ENIs to any pod: {enis}",
        "delete the pods of their pools, take the pools out of the settings, and let the ENIs drain",
    ),
    FailureCode.EXPORT_MULTI_NIC: FailureMessage(
        "pods have interfaces of several network cards, which the file for amazon-vpc-cni-k8s does not describe: {sandboxes}",
        "delete these pods first",
    ),
    FailureCode.ANNOTATION_VALUES: FailureMessage("{key}: {names} must be strings"),
    FailureCode.INVENTORY_CALLS_SPENT: FailureMessage(
        "EC2's list of {subject} did not end",
        "the {calls} calls of this run are spent; allow more by --max-calls, or name fewer subnets",
    ),
    FailureCode.INVENTORY_SUBNET_UNKNOWN: FailureMessage(
        "{vpc} has no subnet {subnets}", "it does not exist, is another VPC's, or has no IPv4 addresses; correct --subnets"
    ),
    FailureCode.INVENTORY_WITHOUT_SUBNETS: FailureMessage(
        "no subnet of {vpc} belongs to cluster {cluster}",
        "none of {count} has the tag kubernetes.io/cluster/{cluster} or kubernetes.io/role/cni; set --subnets, which may be `all`",
    ),
    FailureCode.INVENTORY_STATE_UNREADABLE: FailureMessage(
        "{path} cannot be used", "{cause}; `vpc-ipamd-inventory run` writes it anew, and the forecast begins with that run"
    ),
}
"""By code: what failed, on which object, and what to do (I14)."""


def failure(kind: type[E], code: FailureCode, /, **fields: object) -> E:
    """Make an error of class `kind` for a failure, for the caller to raise. The fields become text."""
    row, texts = FAILURES[code], {name: str(value) for name, value in fields.items()}
    error = kind(row.message.format_map(texts), details=row.details.format_map(texts))
    error.failure, error.fields = code, texts
    return error
