"""The messages of kubelet's pods service, in protobuf by field numbers: what a reader of pods gets, written without its code.

Source: kubernetes staging/src/k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto, staging/src/k8s.io/api/core/v1/generated.proto,
staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto, pkg/api/resource/generated.proto. Protobuf: "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.branches.pods import CONFIG_SEEN, CONFIG_SOURCE, Pod

ADDED, MODIFIED, DELETED = 0, 1, 2
KINDS = {"ADDED": ADDED, "MODIFIED": MODIFIED, "DELETED": DELETED}
_VARINT, _BYTES = 0, 2


def list_response(pods: Iterable[Pod]) -> bytes:
    """ListPodsResponse."""
    return b"".join(_field(1, pod_bytes(pod)) for pod in pods)


def get_response(pod: Pod) -> bytes:
    """GetPodResponse."""
    return _field(1, pod_bytes(pod))


def watch_event(kind: str, pod: Pod) -> bytes:
    """WatchPodsEvent; the number of ADDED is 0, which proto3 leaves out."""
    number = KINDS[kind]
    return (_key(1, _VARINT) + _varint(number) if number else b"") + _field(2, pod_bytes(pod))


def uid_of_get_request(message: bytes) -> str:
    """The UID that a GetPodRequest asks for; "" for none."""
    if not message or message[0] != (1 << 3 | _BYTES):
        return ""
    length, at = _read_varint(message, 1)
    return message[at : at + length].decode()


def pod_bytes(pod: Pod) -> bytes:
    """v1.Pod: metadata, and of the spec container 0 and the node."""
    metadata = _text(1, pod.name) + _text(3, pod.namespace) + _text(5, pod.uid) + _map(12, annotations_of(pod))
    limits = _quantities(1, pod.limits) + _quantities(2, pod.limits)
    container = _text(1, "main") + _text(2, "registry.k8s.io/pause") + (_field(8, limits) if limits else b"")
    spec = _field(2, container) + _text(10, pod.node)
    status = _text(1, "Succeeded" if pod.is_over else "Pending")
    return _field(1, metadata) + _field(2, spec) + _field(3, status)


def annotations_of(pod: Pod) -> dict[str, str]:
    """A pod's annotations as kubelet has them, with its own."""
    source = "file" if pod.is_static else "api"
    return {**pod.annotations, CONFIG_SOURCE: source, CONFIG_SEEN: "2026-01-01T00:00:00.000000000Z"}


def _quantities(number: int, values: Mapping[str, str]) -> bytes:
    return b"".join(_field(number, _text(1, name) + _field(2, _text(1, value))) for name, value in sorted(values.items()))


def _map(number: int, values: Mapping[str, str]) -> bytes:
    return b"".join(_field(number, _text(1, name) + _text(2, value)) for name, value in sorted(values.items()))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode()) if value else b""


def _field(number: int, value: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(value)) + value


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < len(message):
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not message[at - 1] & 0x80:
            break
    return value, at
