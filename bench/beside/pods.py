"""What a packet costs between two pods of a node, whoever has wired them."""

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
    """The namespace of a pod that is there, and a thread that lives in it."""

    def __init__(self, path: str) -> None:
        """Raises: OSError."""
        self._thread = ThreadPoolExecutor(max_workers=1)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.call(self._join)

    def _join(self) -> None:
        if _libc.setns(self.fd, CLONE_NEWNET):
            raise PermissionError(ctypes.get_errno(), "setns: root is needed")


@contextmanager
def pair_of(side: Side, container_ids: Sequence[str]) -> Iterator[Pair]:
    """Two pods from the middle of those that are attached, as what sends from the first to the second. Raises: OSError."""
    middle = len(container_ids) // 2
    sender_id, receiver_id = container_ids[middle - 1], container_ids[middle]
    with ExitStack() as stack:
        pods = [Pod(f"{side.node.root}{netns_path(one)}") for one in (sender_id, receiver_id)]
        for pod in pods:
            stack.callback(pod.close)
        result = json.loads(Path(f"{side.node.root}{FOLDER}/{receiver_id}.result").read_text())
        yield Pair(stack, pods[0], pods[1], ip_interface(result["ips"][0]["address"]).ip)


@contextmanager
def one_processor() -> Iterator[None]:
    """Let this thread run on one CPU only: a packet is then handled within the call that sends it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
