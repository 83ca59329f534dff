"""The pause image: a static program of about 200 bytes, written without a compiler, in an OCI archive.

A sandbox needs one process that holds its namespaces and does nothing else. As PID 1 it must reap orphans and end on SIGTERM, although
PID 1 ignores signals that it did not ask for. So the program ignores SIGCHLD with SA_NOCLDWAIT, which lets the kernel reap, blocks
SIGTERM and SIGINT, waits for them with rt_sigtimedwait, and exits with 0. Building it needs no library, no file and no network. Tests
check only the bytes of the aarch64 program; the x86_64 program runs in every lab.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tarfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType

IMAGE = "vpc-lab.local/pause:1"
BASE = 0x400000  # the traditional load address; anything above vm.mmap_min_addr would do
SIGSET = struct.pack("<Q", 1 << (15 - 1) | 1 << (2 - 1))  # SIGTERM, SIGINT
SIGCHLD, SIG_BLOCK = 17, 0
CHILD_ACTION = struct.pack("<QQQQ", 1, 2, 0, 0)  # kernel sigaction: SIG_IGN, SA_NOCLDWAIT, no restorer, empty mask
DATA = SIGSET + CHILD_ACTION
HEADERS_BYTES = 64 + 56

MACHINES = {"x86_64": ("amd64", 62), "aarch64": ("arm64", 183)}  # Go's name, ELF e_machine


def image_archive(machine: str | None = None) -> bytes:
    """Build the OCI archive (tar) of the pause image. `machine`: x86_64 or aarch64; by default this machine's. The bytes are
    reproducible."""
    return archive(IMAGE, "pause", pause_program(machine), machine)


def archive(image: str, name: str, program: bytes, machine: str | None = None) -> bytes:
    """Build the OCI archive of an image that has only one static program. `image`: the image's reference. `name`: the program's
    name."""
    return archive_of_layers(image, [_tar({name: (program, 0o755)})], entrypoint=[f"/{name}"], machine=machine)


def archive_of_layers(
    image: str,
    layers: Sequence[bytes],
    *,
    entrypoint: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
    machine: str | None = None,
) -> bytes:
    """Build the OCI archive of an image.

    Args:
        image: the image's reference.
        layers: uncompressed tar files, the lowest first.
        environment: environment variables of the image's processes. If any is given, PATH should be given too.
    """
    architecture, _ = MACHINES[machine or os.uname().machine]
    variables = [f"{name}={value}" for name, value in environment.items()]
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), **({"Env": variables} if variables else {})},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer) for layer in layers],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": image}
    entry["platform"] = {"architecture": architecture, "os": "linux"}
    files = {
        "oci-layout": (_json({"imageLayoutVersion": "1.0.0"}), 0o644),
        "index.json": (_json({"schemaVersion": 2, "manifests": [entry]}), 0o644),
    }
    for blob in (*layers, config, manifest):
        files[f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}"] = (blob, 0o644)
    return _tar(files)


def pause_program(machine: str | None = None) -> bytes:
    """Build the static ELF64 executable: one read-execute segment that holds headers, data and code."""
    name = machine or os.uname().machine
    sigset = BASE + HEADERS_BYTES
    action = sigset + len(SIGSET)
    code = (_x86_64 if name == "x86_64" else _aarch64)(sigset, action)
    size = HEADERS_BYTES + len(DATA) + len(code)
    entry = BASE + HEADERS_BYTES + len(DATA)
    header = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)  # 64-bit, little-endian, version 1, System V
    header += struct.pack("<HHIQQQIHHHHHH", 2, MACHINES[name][1], 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)  # PT_LOAD, R+X
    return header + segment + DATA + code


def _x86_64(sigset: int, action: int) -> bytes:
    def call(number: int, rdi: int, rsi: int) -> bytes:
        """mov eax, edi, esi; xor edx, edx; mov r10d, 8; syscall (Intel SDM; syscall convention of the x86-64 psABI)."""
        registers = b"".join(
            bytes([opcode]) + struct.pack("<I", value) for opcode, value in ((0xB8, number), (0xBF, rdi), (0xBE, rsi))
        )
        return registers + b"\x31\xd2" + b"\x41\xba\x08\x00\x00\x00" + b"\x0f\x05"

    wait = call(128, sigset, 0) + b"\x85\xc0"  # rt_sigtimedwait; test eax, eax
    wait += b"\x78" + struct.pack("b", -(len(wait) + 2))  # js: an interrupted wait is repeated
    return call(13, SIGCHLD, action) + call(14, SIG_BLOCK, sigset) + wait + call(231, 0, 0)  # exit_group


def _aarch64(sigset: int, action: int) -> bytes:
    def load(register: int, value: int) -> bytes:
        low, high = value & 0xFFFF, value >> 16
        return struct.pack("<II", 0xD2800000 | low << 5 | register, 0xF2A00000 | high << 5 | register)  # movz, movk

    def call(number: int, x0: int, x1: int) -> bytes:
        values = ((0, x0), (1, x1), (2, 0), (3, 8), (8, number))
        return b"".join(load(register, value) for register, value in values) + struct.pack("<I", 0xD4000001)  # svc #0

    wait = call(137, sigset, 0)
    back = (-(len(wait) // 4)) & 0x3FFF
    wait += struct.pack("<I", 0xB7F80000 | back << 5)  # tbnz x0, #63
    return call(134, SIGCHLD, action) + call(135, SIG_BLOCK, sigset) + wait + call(94, 0, 0)


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, (content, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
