from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetryRequest(_message.Message):
    __slots__ = ("outcome_only",)
    OUTCOME_ONLY_FIELD_NUMBER: _ClassVar[int]
    outcome_only: bool
    def __init__(self, outcome_only: _Optional[bool] = ...) -> None: ...

class RetryReply(_message.Message):
    __slots__ = ("outcomes", "retried")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Obstacle]
    retried: _containers.RepeatedCompositeFieldContainer[Obstacle]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Obstacle, _Mapping]]] = ..., retried: _Optional[_Iterable[_Union[Obstacle, _Mapping]]] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("undo",)
    UNDO_FIELD_NUMBER: _ClassVar[int]
    undo: bool
    def __init__(self, undo: _Optional[bool] = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("steps", "problems", "exported_count")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedScalarFieldContainer[str]
    exported_count: int
    def __init__(self, steps: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[str]] = ..., exported_count: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusReply(_message.Message):
    __slots__ = ("version", "instance_id", "alive", "ready", "phase", "uptime_s", "stages", "pool", "runtime", "cloud", "last_error", "degraded", "spooled_delete_count", "veths_pending_deletion_count", "busy", "verdict", "confinement", "subnets", "freezes", "settings", "conditions", "cut_off_count", "policy_mode", "pending_policy_cleanup_count", "branches", "companions", "pod_pools", "facts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    CLOUD_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_DELETE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VETHS_PENDING_DELETION_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CONFINEMENT_FIELD_NUMBER: _ClassVar[int]
    SUBNETS_FIELD_NUMBER: _ClassVar[int]
    FREEZES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_COUNT_FIELD_NUMBER: _ClassVar[int]
    POLICY_MODE_FIELD_NUMBER: _ClassVar[int]
    PENDING_POLICY_CLEANUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    POD_POOLS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    instance_id: str
    alive: bool
    ready: bool
    phase: str
    uptime_s: float
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    pool: Pool
    runtime: Runtime
    cloud: Cloud
    last_error: LastError
    degraded: _containers.RepeatedScalarFieldContainer[str]
    spooled_delete_count: int
    veths_pending_deletion_count: int
    busy: _containers.RepeatedCompositeFieldContainer[Busy]
    verdict: str
    confinement: Confinement
    subnets: _containers.RepeatedCompositeFieldContainer[Subnet]
    freezes: _containers.RepeatedCompositeFieldContainer[Freezing]
    settings: SettingsState
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    cut_off_count: int
    policy_mode: str
    pending_policy_cleanup_count: int
    branches: Branches
    companions: _containers.RepeatedCompositeFieldContainer[Companion]
    pod_pools: _containers.RepeatedCompositeFieldContainer[PodPool]
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., alive: _Optional[bool] = ..., ready: _Optional[bool] = ..., phase: _Optional[str] = ..., uptime_s: _Optional[float] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., pool: _Optional[_Union[Pool, _Mapping]] = ..., runtime: _Optional[_Union[Runtime, _Mapping]] = ..., cloud: _Optional[_Union[Cloud, _Mapping]] = ..., last_error: _Optional[_Union[LastError, _Mapping]] = ..., degraded: _Optional[_Iterable[str]] = ..., spooled_delete_count: _Optional[int] = ..., veths_pending_deletion_count: _Optional[int] = ..., busy: _Optional[_Iterable[_Union[Busy, _Mapping]]] = ..., verdict: _Optional[str] = ..., confinement: _Optional[_Union[Confinement, _Mapping]] = ..., subnets: _Optional[_Iterable[_Union[Subnet, _Mapping]]] = ..., freezes: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., settings: _Optional[_Union[SettingsState, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., cut_off_count: _Optional[int] = ..., policy_mode: _Optional[str] = ..., pending_policy_cleanup_count: _Optional[int] = ..., branches: _Optional[_Union[Branches, _Mapping]] = ..., companions: _Optional[_Iterable[_Union[Companion, _Mapping]]] = ..., pod_pools: _Optional[_Iterable[_Union[PodPool, _Mapping]]] = ..., facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Companion(_message.Message):
    __slots__ = ("kind", "name", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    detail: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Branches(_message.Message):
    __slots__ = ("mode", "trunk", "count", "branch_limit", "waiting_count", "mismatched_count", "unconfirmed_count")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TRUNK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_COUNT_FIELD_NUMBER: _ClassVar[int]
    mode: str
    trunk: str
    count: int
    branch_limit: int
    waiting_count: int
    mismatched_count: int
    unconfirmed_count: int
    def __init__(self, mode: _Optional[str] = ..., trunk: _Optional[str] = ..., count: _Optional[int] = ..., branch_limit: _Optional[int] = ..., waiting_count: _Optional[int] = ..., mismatched_count: _Optional[int] = ..., unconfirmed_count: _Optional[int] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("subject", "since", "text", "next", "page", "codes", "refusals", "refused_ago_s")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_AGO_S_FIELD_NUMBER: _ClassVar[int]
    subject: str
    since: str
    text: str
    next: str
    page: str
    codes: _containers.RepeatedScalarFieldContainer[str]
    refusals: _containers.RepeatedCompositeFieldContainer[Ec2Refusal]
    refused_ago_s: float
    def __init__(self, subject: _Optional[str] = ..., since: _Optional[str] = ..., text: _Optional[str] = ..., next: _Optional[str] = ..., page: _Optional[str] = ..., codes: _Optional[_Iterable[str]] = ..., refusals: _Optional[_Iterable[_Union[Ec2Refusal, _Mapping]]] = ..., refused_ago_s: _Optional[float] = ...) -> None: ...

class Ec2Refusal(_message.Message):
    __slots__ = ("operation", "subject", "code")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    operation: str
    subject: str
    code: str
    def __init__(self, operation: _Optional[str] = ..., subject: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class SettingsState(_message.Message):
    __slots__ = ("generation", "file", "awaiting_restart", "valid", "differences")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    AWAITING_RESTART_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    file: str
    awaiting_restart: _containers.RepeatedScalarFieldContainer[str]
    valid: bool
    differences: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generation: _Optional[int] = ..., file: _Optional[str] = ..., awaiting_restart: _Optional[_Iterable[str]] = ..., valid: _Optional[bool] = ..., differences: _Optional[_Iterable[str]] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("freezes", "problem")
    FREEZES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    freezes: _containers.RepeatedCompositeFieldContainer[Freezing]
    problem: str
    def __init__(self, freezes: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class ThawRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ThawReply(_message.Message):
    __slots__ = ("freezes", "problem")
    FREEZES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    freezes: _containers.RepeatedCompositeFieldContainer[Freezing]
    problem: str
    def __init__(self, freezes: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class Freezing(_message.Message):
    __slots__ = ("cause", "reason", "since")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    cause: str
    reason: str
    since: str
    def __init__(self, cause: _Optional[str] = ..., reason: _Optional[str] = ..., since: _Optional[str] = ...) -> None: ...

class Subnet(_message.Message):
    __slots__ = ("subnet_id", "free_count", "unusable_reason", "answer_age_s")
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    ANSWER_AGE_S_FIELD_NUMBER: _ClassVar[int]
    subnet_id: str
    free_count: int
    unusable_reason: str
    answer_age_s: float
    def __init__(self, subnet_id: _Optional[str] = ..., free_count: _Optional[int] = ..., unusable_reason: _Optional[str] = ..., answer_age_s: _Optional[float] = ...) -> None: ...

class Confinement(_message.Message):
    __slots__ = ("source_check_enforced", "dropped", "foreign_links")
    SOURCE_CHECK_ENFORCED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_LINKS_FIELD_NUMBER: _ClassVar[int]
    source_check_enforced: bool
    dropped: _containers.RepeatedCompositeFieldContainer[Dropped]
    foreign_links: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source_check_enforced: _Optional[bool] = ..., dropped: _Optional[_Iterable[_Union[Dropped, _Mapping]]] = ..., foreign_links: _Optional[_Iterable[str]] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("container_id", "ifname", "operation", "age_s", "waiting_count", "caller_left")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    CALLER_LEFT_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    ifname: str
    operation: str
    age_s: float
    waiting_count: int
    caller_left: bool
    def __init__(self, container_id: _Optional[str] = ..., ifname: _Optional[str] = ..., operation: _Optional[str] = ..., age_s: _Optional[float] = ..., waiting_count: _Optional[int] = ..., caller_left: _Optional[bool] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("name", "state", "elapsed_s", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    elapsed_s: float
    detail: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., detail: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("total_count", "free_count", "reserved_count", "assigned_count", "cooling_count", "quarantined_count", "eni_count", "eni_limit", "slots_per_eni", "last_cycle", "targets", "assignable_count", "lost_count", "auto", "excess_count", "excess_kept_reason", "prefix_mode")
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COOLING_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENI_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENI_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_PER_ENI_FIELD_NUMBER: _ClassVar[int]
    LAST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    EXCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCESS_KEPT_REASON_FIELD_NUMBER: _ClassVar[int]
    PREFIX_MODE_FIELD_NUMBER: _ClassVar[int]
    total_count: int
    free_count: int
    reserved_count: int
    assigned_count: int
    cooling_count: int
    quarantined_count: int
    eni_count: int
    eni_limit: int
    slots_per_eni: int
    last_cycle: str
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    assignable_count: int
    lost_count: int
    auto: str
    excess_count: int
    excess_kept_reason: str
    prefix_mode: bool
    def __init__(self, total_count: _Optional[int] = ..., free_count: _Optional[int] = ..., reserved_count: _Optional[int] = ..., assigned_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., eni_count: _Optional[int] = ..., eni_limit: _Optional[int] = ..., slots_per_eni: _Optional[int] = ..., last_cycle: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., assignable_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., auto: _Optional[str] = ..., excess_count: _Optional[int] = ..., excess_kept_reason: _Optional[str] = ..., prefix_mode: _Optional[bool] = ...) -> None: ...

class PodPool(_message.Message):
    __slots__ = ("name", "eni_count", "eni_limit", "total_count", "free_count", "assigned_count", "cooling_count", "assignable_count", "waiting_count", "address_limit", "last_cycle", "blocked", "share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENI_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENI_LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COOLING_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    LAST_CYCLE_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    eni_count: int
    eni_limit: int
    total_count: int
    free_count: int
    assigned_count: int
    cooling_count: int
    assignable_count: int
    waiting_count: int
    address_limit: int
    last_cycle: str
    blocked: str
    share: str
    def __init__(self, name: _Optional[str] = ..., eni_count: _Optional[int] = ..., eni_limit: _Optional[int] = ..., total_count: _Optional[int] = ..., free_count: _Optional[int] = ..., assigned_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., assignable_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., address_limit: _Optional[int] = ..., last_cycle: _Optional[str] = ..., blocked: _Optional[str] = ..., share: _Optional[str] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("name", "value", "defined")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    defined: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ..., defined: _Optional[bool] = ...) -> None: ...

class Runtime(_message.Message):
    __slots__ = ("socket", "reachable", "name", "version", "list_age_s", "sandbox_count", "detail", "events")
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LIST_AGE_S_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    socket: str
    reachable: bool
    name: str
    version: str
    list_age_s: float
    sandbox_count: int
    detail: str
    events: bool
    def __init__(self, socket: _Optional[str] = ..., reachable: _Optional[bool] = ..., name: _Optional[str] = ..., version: _Optional[str] = ..., list_age_s: _Optional[float] = ..., sandbox_count: _Optional[int] = ..., detail: _Optional[str] = ..., events: _Optional[bool] = ...) -> None: ...

class Cloud(_message.Message):
    __slots__ = ("reachable", "call_count", "detail")
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    CALL_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reachable: bool
    call_count: int
    detail: str
    def __init__(self, reachable: _Optional[bool] = ..., call_count: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class LastError(_message.Message):
    __slots__ = ("at", "subject", "message", "resolved_at")
    AT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_FIELD_NUMBER: _ClassVar[int]
    at: str
    subject: str
    message: str
    resolved_at: str
    def __init__(self, at: _Optional[str] = ..., subject: _Optional[str] = ..., message: _Optional[str] = ..., resolved_at: _Optional[str] = ...) -> None: ...

class ListEnisRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEnisReply(_message.Message):
    __slots__ = ("enis",)
    ENIS_FIELD_NUMBER: _ClassVar[int]
    enis: _containers.RepeatedCompositeFieldContainer[Eni]
    def __init__(self, enis: _Optional[_Iterable[_Union[Eni, _Mapping]]] = ...) -> None: ...

class Eni(_message.Message):
    __slots__ = ("eni_id", "mac", "device_index", "network_card", "primary", "state", "subnet_id", "subnet_cidr", "primary_address", "slot_count", "free_count", "assigned_count", "cooling_count", "quarantined_count", "route_table", "host_ready", "prefixes", "reserved_count", "lost_count", "frozen_reason", "pool", "excluded_reason")
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NETWORK_CARD_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    SUBNET_CIDR_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COOLING_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_TABLE_FIELD_NUMBER: _ClassVar[int]
    HOST_READY_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    FROZEN_REASON_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_REASON_FIELD_NUMBER: _ClassVar[int]
    eni_id: str
    mac: str
    device_index: int
    network_card: int
    primary: bool
    state: str
    subnet_id: str
    subnet_cidr: str
    primary_address: str
    slot_count: int
    free_count: int
    assigned_count: int
    cooling_count: int
    quarantined_count: int
    route_table: int
    host_ready: bool
    prefixes: _containers.RepeatedScalarFieldContainer[str]
    reserved_count: int
    lost_count: int
    frozen_reason: str
    pool: str
    excluded_reason: str
    def __init__(self, eni_id: _Optional[str] = ..., mac: _Optional[str] = ..., device_index: _Optional[int] = ..., network_card: _Optional[int] = ..., primary: _Optional[bool] = ..., state: _Optional[str] = ..., subnet_id: _Optional[str] = ..., subnet_cidr: _Optional[str] = ..., primary_address: _Optional[str] = ..., slot_count: _Optional[int] = ..., free_count: _Optional[int] = ..., assigned_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., route_table: _Optional[int] = ..., host_ready: _Optional[bool] = ..., prefixes: _Optional[_Iterable[str]] = ..., reserved_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., frozen_reason: _Optional[str] = ..., pool: _Optional[str] = ..., excluded_reason: _Optional[str] = ...) -> None: ...

class ListAttachmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAttachmentsReply(_message.Message):
    __slots__ = ("attachments",)
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("container_id", "ifname", "address", "eni_id", "host_veth", "netns", "sandbox_name", "created_at", "origin", "lost_since", "other_address", "vlan", "branch_problem")
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_VETH_FIELD_NUMBER: _ClassVar[int]
    NETNS_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LOST_SINCE_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VLAN_FIELD_NUMBER: _ClassVar[int]
    BRANCH_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    container_id: str
    ifname: str
    address: str
    eni_id: str
    host_veth: str
    netns: str
    sandbox_name: str
    created_at: str
    origin: str
    lost_since: str
    other_address: str
    vlan: int
    branch_problem: str
    def __init__(self, container_id: _Optional[str] = ..., ifname: _Optional[str] = ..., address: _Optional[str] = ..., eni_id: _Optional[str] = ..., host_veth: _Optional[str] = ..., netns: _Optional[str] = ..., sandbox_name: _Optional[str] = ..., created_at: _Optional[str] = ..., origin: _Optional[str] = ..., lost_since: _Optional[str] = ..., other_address: _Optional[str] = ..., vlan: _Optional[int] = ..., branch_problem: _Optional[str] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("subject", "limit", "since", "at")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    limit: int
    since: str
    at: str
    def __init__(self, subject: _Optional[str] = ..., limit: _Optional[int] = ..., since: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class GetHistoryReply(_message.Message):
    __slots__ = ("entries", "tenures", "notes", "source", "at")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TENURES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    tenures: _containers.RepeatedCompositeFieldContainer[Tenure]
    notes: _containers.RepeatedScalarFieldContainer[str]
    source: str
    at: str
    def __init__(self, entries: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., tenures: _Optional[_Iterable[_Union[Tenure, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class LedgerEntry(_message.Message):
    __slots__ = ("at", "event", "address", "container_id", "ifname", "eni_id", "detail", "pod", "since", "count", "code")
    AT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    at: str
    event: str
    address: str
    container_id: str
    ifname: str
    eni_id: str
    detail: str
    pod: str
    since: str
    count: int
    code: int
    def __init__(self, at: _Optional[str] = ..., event: _Optional[str] = ..., address: _Optional[str] = ..., container_id: _Optional[str] = ..., ifname: _Optional[str] = ..., eni_id: _Optional[str] = ..., detail: _Optional[str] = ..., pod: _Optional[str] = ..., since: _Optional[str] = ..., count: _Optional[int] = ..., code: _Optional[int] = ...) -> None: ...

class Tenure(_message.Message):
    __slots__ = ("address", "container_id", "ifname", "pod", "since", "until", "ended_by", "sentence")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ENDED_BY_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    address: str
    container_id: str
    ifname: str
    pod: str
    since: str
    until: str
    ended_by: str
    sentence: str
    def __init__(self, address: _Optional[str] = ..., container_id: _Optional[str] = ..., ifname: _Optional[str] = ..., pod: _Optional[str] = ..., since: _Optional[str] = ..., until: _Optional[str] = ..., ended_by: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("skip_ec2",)
    SKIP_EC2_FIELD_NUMBER: _ClassVar[int]
    skip_ec2: bool
    def __init__(self, skip_ec2: _Optional[bool] = ...) -> None: ...

class AuditReply(_message.Message):
    __slots__ = ("findings", "unavailable_sources", "address_count")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_SOURCES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    unavailable_sources: _containers.RepeatedScalarFieldContainer[str]
    address_count: int
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., unavailable_sources: _Optional[_Iterable[str]] = ..., address_count: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("severity", "subject", "text", "next", "code")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    severity: str
    subject: str
    text: str
    next: str
    code: str
    def __init__(self, severity: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., next: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("subject", "since", "at", "find")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    FIND_FIELD_NUMBER: _ClassVar[int]
    subject: str
    since: str
    at: str
    find: bool
    def __init__(self, subject: _Optional[str] = ..., since: _Optional[str] = ..., at: _Optional[str] = ..., find: _Optional[bool] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("subject", "sentences", "history", "notes", "source")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    sentences: _containers.RepeatedScalarFieldContainer[str]
    history: _containers.RepeatedCompositeFieldContainer[LedgerEntry]
    notes: _containers.RepeatedScalarFieldContainer[str]
    source: str
    def __init__(self, subject: _Optional[str] = ..., sentences: _Optional[_Iterable[str]] = ..., history: _Optional[_Iterable[_Union[LedgerEntry, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., source: _Optional[str] = ...) -> None: ...

class PathRequest(_message.Message):
    __slots__ = ("subject", "destination")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    subject: str
    destination: str
    def __init__(self, subject: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class PathReply(_message.Message):
    __slots__ = ("pod", "sandbox", "kind", "source", "destination", "port", "verdict", "cause", "text", "next", "findings", "lookups", "eni", "translated", "seen_as", "policy_mode", "unseen")
    POD_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    LOOKUPS_FIELD_NUMBER: _ClassVar[int]
    ENI_FIELD_NUMBER: _ClassVar[int]
    TRANSLATED_FIELD_NUMBER: _ClassVar[int]
    SEEN_AS_FIELD_NUMBER: _ClassVar[int]
    POLICY_MODE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    pod: str
    sandbox: str
    kind: str
    source: str
    destination: str
    port: int
    verdict: str
    cause: str
    text: str
    next: str
    findings: _containers.RepeatedCompositeFieldContainer[PathFinding]
    lookups: _containers.RepeatedCompositeFieldContainer[PathLookup]
    eni: PathEni
    translated: bool
    seen_as: str
    policy_mode: str
    unseen: _containers.RepeatedCompositeFieldContainer[UnseenPart]
    def __init__(self, pod: _Optional[str] = ..., sandbox: _Optional[str] = ..., kind: _Optional[str] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ..., port: _Optional[int] = ..., verdict: _Optional[str] = ..., cause: _Optional[str] = ..., text: _Optional[str] = ..., next: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[PathFinding, _Mapping]]] = ..., lookups: _Optional[_Iterable[_Union[PathLookup, _Mapping]]] = ..., eni: _Optional[_Union[PathEni, _Mapping]] = ..., translated: _Optional[bool] = ..., seen_as: _Optional[str] = ..., policy_mode: _Optional[str] = ..., unseen: _Optional[_Iterable[_Union[UnseenPart, _Mapping]]] = ...) -> None: ...

class PathFinding(_message.Message):
    __slots__ = ("verdict", "cause", "text", "next")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    cause: str
    text: str
    next: str
    def __init__(self, verdict: _Optional[str] = ..., cause: _Optional[str] = ..., text: _Optional[str] = ..., next: _Optional[str] = ...) -> None: ...

class PathLookup(_message.Message):
    __slots__ = ("place", "destination", "source", "incoming", "mark", "result", "rule", "rule_text", "table", "link", "via", "error")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INCOMING_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    RULE_TEXT_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    place: str
    destination: str
    source: str
    incoming: str
    mark: int
    result: str
    rule: int
    rule_text: str
    table: int
    link: str
    via: str
    error: str
    def __init__(self, place: _Optional[str] = ..., destination: _Optional[str] = ..., source: _Optional[str] = ..., incoming: _Optional[str] = ..., mark: _Optional[int] = ..., result: _Optional[str] = ..., rule: _Optional[int] = ..., rule_text: _Optional[str] = ..., table: _Optional[int] = ..., link: _Optional[str] = ..., via: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class PathEni(_message.Message):
    __slots__ = ("eni_id", "link", "device_index", "network_card", "subnet_id", "security_group_ids")
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    DEVICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NETWORK_CARD_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    SECURITY_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    eni_id: str
    link: str
    device_index: int
    network_card: int
    subnet_id: str
    security_group_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, eni_id: _Optional[str] = ..., link: _Optional[str] = ..., device_index: _Optional[int] = ..., network_card: _Optional[int] = ..., subnet_id: _Optional[str] = ..., security_group_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class UnseenPart(_message.Message):
    __slots__ = ("text", "console", "subject")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONSOLE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    text: str
    console: str
    subject: str
    def __init__(self, text: _Optional[str] = ..., console: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigReply(_message.Message):
    __slots__ = ("settings", "origin_note")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_NOTE_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    origin_note: str
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., origin_note: _Optional[str] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "default", "origin", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default: str
    origin: str
    text: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default: _Optional[str] = ..., origin: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("settings", "instance_type", "network_file", "network_source", "pool")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FILE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedScalarFieldContainer[str]
    instance_type: str
    network_file: bytes
    network_source: str
    pool: str
    def __init__(self, settings: _Optional[_Iterable[str]] = ..., instance_type: _Optional[str] = ..., network_file: _Optional[bytes] = ..., network_source: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("sentence", "actions", "deficit_count", "excess_count", "obstacles", "targets", "auto", "changed", "instance_type", "eni_limit", "slots_per_eni", "eni_count", "total_count", "free_count", "in_use_count", "cooling_count", "waiting_count", "pool", "in_progress", "network", "prefix_mode", "address_limit")
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DEFICIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    OBSTACLES_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENI_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_PER_ENI_FIELD_NUMBER: _ClassVar[int]
    ENI_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_USE_COUNT_FIELD_NUMBER: _ClassVar[int]
    COOLING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    PREFIX_MODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    actions: _containers.RepeatedCompositeFieldContainer[PlannedAction]
    deficit_count: int
    excess_count: int
    obstacles: _containers.RepeatedCompositeFieldContainer[Obstacle]
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    auto: AutoTarget
    changed: _containers.RepeatedScalarFieldContainer[str]
    instance_type: str
    eni_limit: int
    slots_per_eni: int
    eni_count: int
    total_count: int
    free_count: int
    in_use_count: int
    cooling_count: int
    waiting_count: int
    pool: str
    in_progress: str
    network: NetworkPlan
    prefix_mode: bool
    address_limit: int
    def __init__(self, sentence: _Optional[str] = ..., actions: _Optional[_Iterable[_Union[PlannedAction, _Mapping]]] = ..., deficit_count: _Optional[int] = ..., excess_count: _Optional[int] = ..., obstacles: _Optional[_Iterable[_Union[Obstacle, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., auto: _Optional[_Union[AutoTarget, _Mapping]] = ..., changed: _Optional[_Iterable[str]] = ..., instance_type: _Optional[str] = ..., eni_limit: _Optional[int] = ..., slots_per_eni: _Optional[int] = ..., eni_count: _Optional[int] = ..., total_count: _Optional[int] = ..., free_count: _Optional[int] = ..., in_use_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., pool: _Optional[str] = ..., in_progress: _Optional[str] = ..., network: _Optional[_Union[NetworkPlan, _Mapping]] = ..., prefix_mode: _Optional[bool] = ..., address_limit: _Optional[int] = ...) -> None: ...

class NetworkPlan(_message.Message):
    __slots__ = ("source", "refused_code", "refused_reason", "in_force", "custom_networking", "zone", "entry", "subnet_id", "security_group_ids", "problem", "unchecked_reason", "free_count", "other_entries", "primary_carries_pods", "max_pods", "max_pods_now", "enis")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CODE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REASON_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_NETWORKING_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    SECURITY_GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    UNCHECKED_REASON_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OTHER_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_CARRIES_PODS_FIELD_NUMBER: _ClassVar[int]
    MAX_PODS_FIELD_NUMBER: _ClassVar[int]
    MAX_PODS_NOW_FIELD_NUMBER: _ClassVar[int]
    ENIS_FIELD_NUMBER: _ClassVar[int]
    source: str
    refused_code: str
    refused_reason: str
    in_force: bool
    custom_networking: bool
    zone: str
    entry: str
    subnet_id: str
    security_group_ids: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    unchecked_reason: str
    free_count: int
    other_entries: _containers.RepeatedScalarFieldContainer[str]
    primary_carries_pods: bool
    max_pods: int
    max_pods_now: int
    enis: _containers.RepeatedCompositeFieldContainer[PlannedEni]
    def __init__(self, source: _Optional[str] = ..., refused_code: _Optional[str] = ..., refused_reason: _Optional[str] = ..., in_force: _Optional[bool] = ..., custom_networking: _Optional[bool] = ..., zone: _Optional[str] = ..., entry: _Optional[str] = ..., subnet_id: _Optional[str] = ..., security_group_ids: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., unchecked_reason: _Optional[str] = ..., free_count: _Optional[int] = ..., other_entries: _Optional[_Iterable[str]] = ..., primary_carries_pods: _Optional[bool] = ..., max_pods: _Optional[int] = ..., max_pods_now: _Optional[int] = ..., enis: _Optional[_Iterable[_Union[PlannedEni, _Mapping]]] = ...) -> None: ...

class PlannedEni(_message.Message):
    __slots__ = ("eni_id", "subnet_id", "fate", "reason", "reason_now", "pods", "free_count")
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    FATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_NOW_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    eni_id: str
    subnet_id: str
    fate: str
    reason: str
    reason_now: str
    pods: _containers.RepeatedScalarFieldContainer[str]
    free_count: int
    def __init__(self, eni_id: _Optional[str] = ..., subnet_id: _Optional[str] = ..., fate: _Optional[str] = ..., reason: _Optional[str] = ..., reason_now: _Optional[str] = ..., pods: _Optional[_Iterable[str]] = ..., free_count: _Optional[int] = ...) -> None: ...

class PlannedAction(_message.Message):
    __slots__ = ("kind", "eni_id", "address_count", "prefix_count", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENI_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_COUNT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    eni_id: str
    address_count: int
    prefix_count: int
    text: str
    def __init__(self, kind: _Optional[str] = ..., eni_id: _Optional[str] = ..., address_count: _Optional[int] = ..., prefix_count: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Obstacle(_message.Message):
    __slots__ = ("subject", "reason", "next", "retry_in_s", "operations", "outcome")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_S_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reason: str
    next: str
    retry_in_s: float
    operations: _containers.RepeatedScalarFieldContainer[str]
    outcome: str
    def __init__(self, subject: _Optional[str] = ..., reason: _Optional[str] = ..., next: _Optional[str] = ..., retry_in_s: _Optional[float] = ..., operations: _Optional[_Iterable[str]] = ..., outcome: _Optional[str] = ...) -> None: ...

class AutoTarget(_message.Message):
    __slots__ = ("in_force", "count", "sentence", "reserve_count", "held_reserve_count", "arriving_count", "growth_count", "peak_count", "in_use_count", "max_count", "adds_per_s_1m", "adds_per_s_10m", "allocation_s", "creation_s", "expected_at_start_count")
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_RESERVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ARRIVING_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROWTH_COUNT_FIELD_NUMBER: _ClassVar[int]
    PEAK_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_USE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADDS_PER_S_1M_FIELD_NUMBER: _ClassVar[int]
    ADDS_PER_S_10M_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_S_FIELD_NUMBER: _ClassVar[int]
    CREATION_S_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_AT_START_COUNT_FIELD_NUMBER: _ClassVar[int]
    in_force: bool
    count: int
    sentence: str
    reserve_count: int
    held_reserve_count: int
    arriving_count: int
    growth_count: int
    peak_count: int
    in_use_count: int
    max_count: int
    adds_per_s_1m: float
    adds_per_s_10m: float
    allocation_s: float
    creation_s: float
    expected_at_start_count: int
    def __init__(self, in_force: _Optional[bool] = ..., count: _Optional[int] = ..., sentence: _Optional[str] = ..., reserve_count: _Optional[int] = ..., held_reserve_count: _Optional[int] = ..., arriving_count: _Optional[int] = ..., growth_count: _Optional[int] = ..., peak_count: _Optional[int] = ..., in_use_count: _Optional[int] = ..., max_count: _Optional[int] = ..., adds_per_s_1m: _Optional[float] = ..., adds_per_s_10m: _Optional[float] = ..., allocation_s: _Optional[float] = ..., creation_s: _Optional[float] = ..., expected_at_start_count: _Optional[int] = ...) -> None: ...

class CapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CapacityReply(_message.Message):
    __slots__ = ("instance_type", "limits_source", "vcpu_count", "pools", "modes", "branch_limit")
    INSTANCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    VCPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    BRANCH_LIMIT_FIELD_NUMBER: _ClassVar[int]
    instance_type: str
    limits_source: str
    vcpu_count: int
    pools: _containers.RepeatedCompositeFieldContainer[PodPool]
    modes: _containers.RepeatedCompositeFieldContainer[CapacityMode]
    branch_limit: int
    def __init__(self, instance_type: _Optional[str] = ..., limits_source: _Optional[str] = ..., vcpu_count: _Optional[int] = ..., pools: _Optional[_Iterable[_Union[PodPool, _Mapping]]] = ..., modes: _Optional[_Iterable[_Union[CapacityMode, _Mapping]]] = ..., branch_limit: _Optional[int] = ...) -> None: ...

class CapacityMode(_message.Message):
    __slots__ = ("mode", "address_count", "max_pods", "recommended_max_pods", "formula", "limited_by", "in_force")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_PODS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_MAX_PODS_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    address_count: int
    max_pods: int
    recommended_max_pods: int
    formula: str
    limited_by: str
    in_force: bool
    def __init__(self, mode: _Optional[str] = ..., address_count: _Optional[int] = ..., max_pods: _Optional[int] = ..., recommended_max_pods: _Optional[int] = ..., formula: _Optional[str] = ..., limited_by: _Optional[str] = ..., in_force: _Optional[bool] = ...) -> None: ...
