from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecRequest(_message.Message):
    __slots__ = ("verb", "container_id", "netns", "ifname", "args", "path", "config", "protocol_min", "protocol_max", "plugin_version")
    VERB_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    NETNS_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    verb: str
    container_id: str
    netns: str
    ifname: str
    args: str
    path: str
    config: bytes
    protocol_min: int
    protocol_max: int
    plugin_version: str
    def __init__(self, verb: _Optional[str] = ..., container_id: _Optional[str] = ..., netns: _Optional[str] = ..., ifname: _Optional[str] = ..., args: _Optional[str] = ..., path: _Optional[str] = ..., config: _Optional[bytes] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., plugin_version: _Optional[str] = ...) -> None: ...

class ExecReply(_message.Message):
    __slots__ = ("protocol", "result", "error", "is_starting")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_STARTING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    result: bytes
    error: CniError
    is_starting: bool
    def __init__(self, protocol: _Optional[int] = ..., result: _Optional[bytes] = ..., error: _Optional[_Union[CniError, _Mapping]] = ..., is_starting: _Optional[bool] = ...) -> None: ...

class CniError(_message.Message):
    __slots__ = ("code", "message", "details", "cni_version")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    CNI_VERSION_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: str
    cni_version: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[str] = ..., cni_version: _Optional[str] = ...) -> None: ...
