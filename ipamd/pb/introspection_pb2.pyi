from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RetryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetryReply(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedCompositeFieldContainer[Obstacle]
    def __init__(self, ended: _Optional[_Iterable[_Union[Obstacle, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("version", "instance_id", "alive", "ready", "phase", "uptime_s", "stages", "pool", "runtime", "cloud", "last_error", "lacks", "spooled_count", "dying_count", "busy", "verdict", "confinement", "subnets", "freezings", "settings", "conditions", "cut_off_count", "policy_mode", "owed_count", "branches")
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
    LACKS_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DYING_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CONFINEMENT_FIELD_NUMBER: _ClassVar[int]
    SUBNETS_FIELD_NUMBER: _ClassVar[int]
    FREEZINGS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_COUNT_FIELD_NUMBER: _ClassVar[int]
    POLICY_MODE_FIELD_NUMBER: _ClassVar[int]
    OWED_COUNT_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
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
    lacks: _containers.RepeatedScalarFieldContainer[str]
    spooled_count: int
    dying_count: int
    busy: _containers.RepeatedCompositeFieldContainer[Busy]
    verdict: str
    confinement: Confinement
    subnets: _containers.RepeatedCompositeFieldContainer[Subnet]
    freezings: _containers.RepeatedCompositeFieldContainer[Freezing]
    settings: SettingsState
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    cut_off_count: int
    policy_mode: str
    owed_count: int
    branches: Branches
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., alive: _Optional[bool] = ..., ready: _Optional[bool] = ..., phase: _Optional[str] = ..., uptime_s: _Optional[float] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., pool: _Optional[_Union[Pool, _Mapping]] = ..., runtime: _Optional[_Union[Runtime, _Mapping]] = ..., cloud: _Optional[_Union[Cloud, _Mapping]] = ..., last_error: _Optional[_Union[LastError, _Mapping]] = ..., lacks: _Optional[_Iterable[str]] = ..., spooled_count: _Optional[int] = ..., dying_count: _Optional[int] = ..., busy: _Optional[_Iterable[_Union[Busy, _Mapping]]] = ..., verdict: _Optional[str] = ..., confinement: _Optional[_Union[Confinement, _Mapping]] = ..., subnets: _Optional[_Iterable[_Union[Subnet, _Mapping]]] = ..., freezings: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., settings: _Optional[_Union[SettingsState, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., cut_off_count: _Optional[int] = ..., policy_mode: _Optional[str] = ..., owed_count: _Optional[int] = ..., branches: _Optional[_Union[Branches, _Mapping]] = ...) -> None: ...

class Branches(_message.Message):
    __slots__ = ("mode", "trunk", "count", "branch_count", "waiting_count", "contradicted_count")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TRUNK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTRADICTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    mode: str
    trunk: str
    count: int
    branch_count: int
    waiting_count: int
    contradicted_count: int
    def __init__(self, mode: _Optional[str] = ..., trunk: _Optional[str] = ..., count: _Optional[int] = ..., branch_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., contradicted_count: _Optional[int] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("subject", "since", "text", "next", "page")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    subject: str
    since: str
    text: str
    next: str
    page: str
    def __init__(self, subject: _Optional[str] = ..., since: _Optional[str] = ..., text: _Optional[str] = ..., next: _Optional[str] = ..., page: _Optional[str] = ...) -> None: ...

class SettingsState(_message.Message):
    __slots__ = ("generation", "file", "needs_restart", "valid")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_RESTART_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    file: str
    needs_restart: _containers.RepeatedScalarFieldContainer[str]
    valid: bool
    def __init__(self, generation: _Optional[int] = ..., file: _Optional[str] = ..., needs_restart: _Optional[_Iterable[str]] = ..., valid: _Optional[bool] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("freezings", "problem")
    FREEZINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    freezings: _containers.RepeatedCompositeFieldContainer[Freezing]
    problem: str
    def __init__(self, freezings: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class ThawRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ThawReply(_message.Message):
    __slots__ = ("freezings", "problem")
    FREEZINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    freezings: _containers.RepeatedCompositeFieldContainer[Freezing]
    problem: str
    def __init__(self, freezings: _Optional[_Iterable[_Union[Freezing, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("subnet_id", "free_count", "why_not")
    SUBNET_ID_FIELD_NUMBER: _ClassVar[int]
    FREE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    subnet_id: str
    free_count: int
    why_not: str
    def __init__(self, subnet_id: _Optional[str] = ..., free_count: _Optional[int] = ..., why_not: _Optional[str] = ...) -> None: ...

class Confinement(_message.Message):
    __slots__ = ("source_checked", "dropped", "foreign_links")
    SOURCE_CHECKED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_LINKS_FIELD_NUMBER: _ClassVar[int]
    source_checked: bool
    dropped: _containers.RepeatedCompositeFieldContainer[Dropped]
    foreign_links: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source_checked: _Optional[bool] = ..., dropped: _Optional[_Iterable[_Union[Dropped, _Mapping]]] = ..., foreign_links: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("name", "state", "elapsed_ms", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    elapsed_ms: float
    detail: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., elapsed_ms: _Optional[float] = ..., detail: _Optional[str] = ...) -> None: ...

class Pool(_message.Message):
    __slots__ = ("total_count", "free_count", "reserved_count", "assigned_count", "cooling_count", "quarantined_count", "eni_count", "eni_limit", "slots_per_eni", "last_cycle", "targets", "assignable_count", "lost_count", "auto", "excess_count", "kept")
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
    KEPT_FIELD_NUMBER: _ClassVar[int]
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
    kept: str
    def __init__(self, total_count: _Optional[int] = ..., free_count: _Optional[int] = ..., reserved_count: _Optional[int] = ..., assigned_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., eni_count: _Optional[int] = ..., eni_limit: _Optional[int] = ..., slots_per_eni: _Optional[int] = ..., last_cycle: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., assignable_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., auto: _Optional[str] = ..., excess_count: _Optional[int] = ..., kept: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("at", "what", "message", "resolved_at")
    AT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_FIELD_NUMBER: _ClassVar[int]
    at: str
    what: str
    message: str
    resolved_at: str
    def __init__(self, at: _Optional[str] = ..., what: _Optional[str] = ..., message: _Optional[str] = ..., resolved_at: _Optional[str] = ...) -> None: ...

class ListEnisRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEnisReply(_message.Message):
    __slots__ = ("enis",)
    ENIS_FIELD_NUMBER: _ClassVar[int]
    enis: _containers.RepeatedCompositeFieldContainer[Eni]
    def __init__(self, enis: _Optional[_Iterable[_Union[Eni, _Mapping]]] = ...) -> None: ...

class Eni(_message.Message):
    __slots__ = ("eni_id", "mac", "device_index", "network_card", "primary", "state", "subnet_id", "subnet_cidr", "primary_address", "slot_count", "free_count", "assigned_count", "cooling_count", "quarantined_count", "route_table", "host_ready", "prefixes", "reserved_count", "lost_count", "frozen", "excluded")
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
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
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
    frozen: str
    excluded: str
    def __init__(self, eni_id: _Optional[str] = ..., mac: _Optional[str] = ..., device_index: _Optional[int] = ..., network_card: _Optional[int] = ..., primary: _Optional[bool] = ..., state: _Optional[str] = ..., subnet_id: _Optional[str] = ..., subnet_cidr: _Optional[str] = ..., primary_address: _Optional[str] = ..., slot_count: _Optional[int] = ..., free_count: _Optional[int] = ..., assigned_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., quarantined_count: _Optional[int] = ..., route_table: _Optional[int] = ..., host_ready: _Optional[bool] = ..., prefixes: _Optional[_Iterable[str]] = ..., reserved_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., frozen: _Optional[str] = ..., excluded: _Optional[str] = ...) -> None: ...

class ListAttachmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAttachmentsReply(_message.Message):
    __slots__ = ("attachments",)
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    def __init__(self, attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("container_id", "ifname", "address", "eni_id", "host_veth", "netns", "sandbox_name", "created_at", "origin", "lost_since", "other_address", "vlan", "contradiction")
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
    CONTRADICTION_FIELD_NUMBER: _ClassVar[int]
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
    contradiction: str
    def __init__(self, container_id: _Optional[str] = ..., ifname: _Optional[str] = ..., address: _Optional[str] = ..., eni_id: _Optional[str] = ..., host_veth: _Optional[str] = ..., netns: _Optional[str] = ..., sandbox_name: _Optional[str] = ..., created_at: _Optional[str] = ..., origin: _Optional[str] = ..., lost_since: _Optional[str] = ..., other_address: _Optional[str] = ..., vlan: _Optional[int] = ..., contradiction: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("findings", "silent", "address_count")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    silent: _containers.RepeatedScalarFieldContainer[str]
    address_count: int
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ..., address_count: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("severity", "subject", "what", "next")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    severity: str
    subject: str
    what: str
    next: str
    def __init__(self, severity: _Optional[str] = ..., subject: _Optional[str] = ..., what: _Optional[str] = ..., next: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("env", "value", "default", "origin", "text")
    ENV_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    env: str
    value: str
    default: str
    origin: str
    text: str
    def __init__(self, env: _Optional[str] = ..., value: _Optional[str] = ..., default: _Optional[str] = ..., origin: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("settings", "instance_type")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedScalarFieldContainer[str]
    instance_type: str
    def __init__(self, settings: _Optional[_Iterable[str]] = ..., instance_type: _Optional[str] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("sentence", "actions", "deficit_count", "excess_count", "obstacles", "targets", "auto", "changed", "instance_type", "eni_limit", "slots_per_eni", "eni_count", "total_count", "free_count", "in_use_count", "cooling_count", "waiting_count", "under_way")
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
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
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
    under_way: str
    def __init__(self, sentence: _Optional[str] = ..., actions: _Optional[_Iterable[_Union[PlannedAction, _Mapping]]] = ..., deficit_count: _Optional[int] = ..., excess_count: _Optional[int] = ..., obstacles: _Optional[_Iterable[_Union[Obstacle, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., auto: _Optional[_Union[AutoTarget, _Mapping]] = ..., changed: _Optional[_Iterable[str]] = ..., instance_type: _Optional[str] = ..., eni_limit: _Optional[int] = ..., slots_per_eni: _Optional[int] = ..., eni_count: _Optional[int] = ..., total_count: _Optional[int] = ..., free_count: _Optional[int] = ..., in_use_count: _Optional[int] = ..., cooling_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., under_way: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("subject", "reason", "next", "left_s")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    subject: str
    reason: str
    next: str
    left_s: float
    def __init__(self, subject: _Optional[str] = ..., reason: _Optional[str] = ..., next: _Optional[str] = ..., left_s: _Optional[float] = ...) -> None: ...

class AutoTarget(_message.Message):
    __slots__ = ("in_force", "count", "sentence", "reserve_count", "held_count", "arriving_count", "growth_count", "peak_count", "busy_count", "most_count", "minute_rate", "ten_minute_rate", "allocation_s", "creation_s", "start_count")
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ARRIVING_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROWTH_COUNT_FIELD_NUMBER: _ClassVar[int]
    PEAK_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUSY_COUNT_FIELD_NUMBER: _ClassVar[int]
    MOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    MINUTE_RATE_FIELD_NUMBER: _ClassVar[int]
    TEN_MINUTE_RATE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_S_FIELD_NUMBER: _ClassVar[int]
    CREATION_S_FIELD_NUMBER: _ClassVar[int]
    START_COUNT_FIELD_NUMBER: _ClassVar[int]
    in_force: bool
    count: int
    sentence: str
    reserve_count: int
    held_count: int
    arriving_count: int
    growth_count: int
    peak_count: int
    busy_count: int
    most_count: int
    minute_rate: float
    ten_minute_rate: float
    allocation_s: float
    creation_s: float
    start_count: int
    def __init__(self, in_force: _Optional[bool] = ..., count: _Optional[int] = ..., sentence: _Optional[str] = ..., reserve_count: _Optional[int] = ..., held_count: _Optional[int] = ..., arriving_count: _Optional[int] = ..., growth_count: _Optional[int] = ..., peak_count: _Optional[int] = ..., busy_count: _Optional[int] = ..., most_count: _Optional[int] = ..., minute_rate: _Optional[float] = ..., ten_minute_rate: _Optional[float] = ..., allocation_s: _Optional[float] = ..., creation_s: _Optional[float] = ..., start_count: _Optional[int] = ...) -> None: ...

class CapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CapacityReply(_message.Message):
    __slots__ = ("instance_type", "limits_source", "vcpu_count", "modes", "branch_count")
    INSTANCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    VCPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODES_FIELD_NUMBER: _ClassVar[int]
    BRANCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    instance_type: str
    limits_source: str
    vcpu_count: int
    modes: _containers.RepeatedCompositeFieldContainer[CapacityMode]
    branch_count: int
    def __init__(self, instance_type: _Optional[str] = ..., limits_source: _Optional[str] = ..., vcpu_count: _Optional[int] = ..., modes: _Optional[_Iterable[_Union[CapacityMode, _Mapping]]] = ..., branch_count: _Optional[int] = ...) -> None: ...

class CapacityMode(_message.Message):
    __slots__ = ("mode", "address_count", "max_pods", "recommended", "formula", "limited_by", "in_force")
    MODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_PODS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    address_count: int
    max_pods: int
    recommended: int
    formula: str
    limited_by: str
    in_force: bool
    def __init__(self, mode: _Optional[str] = ..., address_count: _Optional[int] = ..., max_pods: _Optional[int] = ..., recommended: _Optional[int] = ..., formula: _Optional[str] = ..., limited_by: _Optional[str] = ..., in_force: _Optional[bool] = ...) -> None: ...
