from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AddNetworkRequest(_message.Message):
    __slots__ = ("K8S_POD_NAME", "K8S_POD_NAMESPACE", "Netns", "IfName", "NetworkName", "ContainerID", "RequiresMultiNICAttachment")
    K8S_POD_NAME_FIELD_NUMBER: _ClassVar[int]
    K8S_POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NETNS_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    NETWORKNAME_FIELD_NUMBER: _ClassVar[int]
    CONTAINERID_FIELD_NUMBER: _ClassVar[int]
    REQUIRESMULTINICATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    K8S_POD_NAME: str
    K8S_POD_NAMESPACE: str
    Netns: str
    IfName: str
    NetworkName: str
    ContainerID: str
    RequiresMultiNICAttachment: bool
    def __init__(self, K8S_POD_NAME: _Optional[str] = ..., K8S_POD_NAMESPACE: _Optional[str] = ..., Netns: _Optional[str] = ..., IfName: _Optional[str] = ..., NetworkName: _Optional[str] = ..., ContainerID: _Optional[str] = ..., RequiresMultiNICAttachment: _Optional[bool] = ...) -> None: ...

class IPAllocationMetadata(_message.Message):
    __slots__ = ("IPv4Addr", "DeviceNumber", "RouteTableId")
    IPV4ADDR_FIELD_NUMBER: _ClassVar[int]
    DEVICENUMBER_FIELD_NUMBER: _ClassVar[int]
    ROUTETABLEID_FIELD_NUMBER: _ClassVar[int]
    IPv4Addr: str
    DeviceNumber: int
    RouteTableId: int
    def __init__(self, IPv4Addr: _Optional[str] = ..., DeviceNumber: _Optional[int] = ..., RouteTableId: _Optional[int] = ...) -> None: ...

class AddNetworkReply(_message.Message):
    __slots__ = ("Success", "IPAllocationMetadata", "UseExternalSNAT", "NetworkPolicyMode")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    IPALLOCATIONMETADATA_FIELD_NUMBER: _ClassVar[int]
    USEEXTERNALSNAT_FIELD_NUMBER: _ClassVar[int]
    NETWORKPOLICYMODE_FIELD_NUMBER: _ClassVar[int]
    Success: bool
    IPAllocationMetadata: _containers.RepeatedCompositeFieldContainer[IPAllocationMetadata]
    UseExternalSNAT: bool
    NetworkPolicyMode: str
    def __init__(self, Success: _Optional[bool] = ..., IPAllocationMetadata: _Optional[_Iterable[_Union[IPAllocationMetadata, _Mapping]]] = ..., UseExternalSNAT: _Optional[bool] = ..., NetworkPolicyMode: _Optional[str] = ...) -> None: ...

class DelNetworkRequest(_message.Message):
    __slots__ = ("Reason", "IfName", "ContainerID")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IFNAME_FIELD_NUMBER: _ClassVar[int]
    CONTAINERID_FIELD_NUMBER: _ClassVar[int]
    Reason: str
    IfName: str
    ContainerID: str
    def __init__(self, Reason: _Optional[str] = ..., IfName: _Optional[str] = ..., ContainerID: _Optional[str] = ...) -> None: ...

class DelNetworkReply(_message.Message):
    __slots__ = ("Success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    Success: bool
    def __init__(self, Success: _Optional[bool] = ...) -> None: ...
