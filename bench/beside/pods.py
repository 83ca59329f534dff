"""The time of a packet between two pods of a node, which any side may have wired."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import ip_interface
from pathlib import Path

from bench.beside.sides import Side
from bench.namespaces import FOLDER, netns_path
from bench.packets import CLONE_NEWNET, Pair, Space

_libc = ctypes.CDLL(None, use_errno=True)


class Pod(Space):
    """The namespace of an existing pod, and a thread that works in it."""

    def __init__(self, path: str) -> None:
        """Enter the namespace at `path`. Raises: OSError."""
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.call(self._join)

    def _join(self) -> None:
        if _libc.setns(self.fd, CLONE_NEWNET):
            raise PermissionError(ctypes.get_errno(), "setns: root is needed")


@contextmanager
def pair_of(side: Side, container_ids: Sequence[str]) -> Iterator[Pair]:
    """Return a pair of two pods from the middle of the attached ones. The first sends to the second. Raises: OSError."""
    middle = len(container_ids) // 2
    sender_id, receiver_id = container_ids[middle - 1], container_ids[middle]
    with ExitStack() as stack:
        pods = [Pod(f"{side.node.root}{netns_path(pod_id)}") for pod_id in (sender_id, receiver_id)]
        for pod in pods:
            stack.callback(pod.close)
        result = json.loads(Path(f"{side.node.root}{FOLDER}/{receiver_id}.result").read_text())
        yield Pair(stack, pods[0], pods[1], ip_interface(result["ips"][0]["address"]).ip)


@contextmanager
def one_processor() -> Iterator[None]:
    """Let this thread run on one CPU only, so that a packet is handled within the call that sends it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
