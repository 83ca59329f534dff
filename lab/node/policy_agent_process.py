"""The process of the policy agent's stand-in: `python -m lab.node.policy_agent_process`, inside a node. `policy_agent.py` drives it.

What it shares with aws-network-policy-agent, because it is what meets a daemon that gives and takes addresses:

- it asks `rpc.ConfigServerBackend` for the mode before anything else, and exits without a valid one;
- it finds a pod's link by the name that the pod's name makes, and hangs real filters on it: strict denies until a policy comes,
  standard allows. Pods whose names differ in their last part alone share programs and maps, which are pinned;
- it remembers *names*. A name that it knows is answered "attached already", whatever link the pod has now; Delete forgets the name,
  and with the last name of a program its pins, though a link of a newer sandbox may still use it. A restart forgets all names, and
  finds programs by their pins.

Fields and numbers are written here by hand, and not taken from the daemon's own generated code, so that a wrong number there cannot
hide itself. Everything that it does to links is appended to a record, which survives it. Sources: aws-network-policy-agent
pkg/ebpf/bpf_client.go, pkg/rpc/rpc_handler.go, main.go, pkg/utils/utils.go; amazon-vpc-cni-k8s rpc/rpc.proto. Left out: conntrack,
rules (a policy passes all or nothing), events, and the API server, whose part the lab plays.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from lab.fabric import bpf, tc

SOCKET, CONFIG_SOCKET = "/run/aws-node/npa.sock", "/run/aws-node/ipamd.sock"
RECORD, ORDERS = "/run/aws-node/npa-record.jsonl", "/run/aws-node/npa-orders.json"
BPFFS = "/sys/fs/bpf"
PROGRAMS, MAPS = f"{BPFFS}/globals/aws/programs", f"{BPFFS}/globals/aws/maps"
MODES = ("standard", "strict")
VETH_PREFIXES = ("eni", "vlan")
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD  # linux/if_ether.h
HOOKS = {"ingress": tc.Hook.TO_LINK, "egress": tc.Hook.FROM_LINK}
"""What comes to a pod goes out of the node by its link, and the reverse."""

_POLICIES = {"allow": bpf.PodState.DEFAULT_ALLOW, "deny": bpf.PodState.DEFAULT_DENY}


def pod_identifier(namespace: str, name: str) -> str:
    """What the replicas of a pod have in common: its name without the last part, dots as underscores, then the namespace."""
    return f"{(name.rpartition('-')[0] or name).replace('.', '_')}@{namespace}"


def host_veth(namespace: str, name: str, *, prefix: str) -> str:
    """The name of a pod's link."""
    return prefix + hashlib.sha1(f"{namespace}.{name}".encode(), usedforsecurity=False).hexdigest()[:11]


def program_pin(identifier: str, direction: str) -> str:
    """Where a program is pinned."""
    return f"{PROGRAMS}/{identifier}_handle_{direction}"


def map_pin(identifier: str, direction: str) -> str:
    """Where the state that it reads is pinned."""
    return f"{MAPS}/{identifier}_{direction}_pod_state_map"


@dataclass(frozen=True)
class Loaded:
    """Both programs of an identifier and their maps, as descriptors."""

    programs: Mapping[str, int]
    maps: Mapping[str, int]

    @property
    def key(self) -> int:
        """One number for both."""
        return bpf.program_id(self.programs["ingress"])

    def set_state(self, state: bpf.PodState) -> None:
        """Tell both what to do."""
        for fd in self.maps.values():
            bpf.set_state(fd, state)


class Memory:
    """What the agent remembers, and what it does to links. Concurrency: any thread; one change at a time."""

    def __init__(self, *, protocol: int, record: Callable[..., None]) -> None:
        """Find the programs that an earlier process pinned; no name is known."""
        self._protocol = protocol
        self._record = record
        self._lock = threading.Lock()
        self._program_of: dict[tuple[str, str], int] = {}
        self._loaded = {identifier: _open(identifier) for identifier in _pinned_identifiers()}

    def enforce(self, namespace: str, name: str, *, mode: str, policy: str) -> None:
        """Filter a pod, unless its name is known.

        Args:
            policy: "allow", "deny", or "" for one that has not come yet.
        Raises: OSError if the pod has no link, or the kernel refuses.
        """
        identifier, pod = pod_identifier(namespace, name), f"{namespace}/{name}"
        with self._lock:
            is_first = identifier not in self._loaded
            if (namespace, name) in self._program_of:
                self._record("attached already", pod=pod, **_link_of(namespace, name))
            else:
                link, ifindex = _link(namespace, name)
                loaded = self._loaded.get(identifier) or self._load(identifier)
                _attach_both(ifindex, loaded)
                self._program_of[namespace, name] = loaded.key
                self._record("attached", pod=pod, link=link, ifindex=ifindex, program=loaded.key)
            if not policy:
                self._loaded[identifier].set_state(_default(mode))
            elif is_first:
                self._loaded[identifier].set_state(_POLICIES[policy])

    def delete(self, namespace: str, name: str) -> None:
        """Forget a name, and the programs and maps of the last one of an identifier."""
        identifier, pod = pod_identifier(namespace, name), f"{namespace}/{name}"
        with self._lock:
            program = self._program_of.pop((namespace, name), None)
            is_last = program is not None and program not in self._program_of.values()
            if is_last:
                loaded = self._loaded.pop(identifier, None)
                _unpin(identifier)
                for fd in (*loaded.programs.values(), *loaded.maps.values()) if loaded is not None else ():
                    os.close(fd)
            did = "deleted" if program is not None else "not known"
            self._record(did, pod=pod, program=program or 0, is_unpinned=is_last)

    def remove_all(self, *, reattaches: bool, gap_s: float) -> None:
        """What a new version does at its start: remove every filter, and hang up new programs after a gap, or never."""
        found = {link: (ifindex, hung) for link, (ifindex, hung) in tc.links(VETH_PREFIXES).items() if hung}
        identifiers = {loaded.key: identifier for identifier, loaded in self._loaded.items()}
        for link, (ifindex, hung) in found.items():
            tc.delete_qdisc(ifindex)
            self._record("removed", link=link, ifindex=ifindex, program=hung.get(HOOKS["ingress"], 0))
        for identifier in list(self._loaded):
            _unpin(identifier)
        self._loaded.clear()
        time.sleep(gap_s)
        for link, (ifindex, hung) in found.items() if reattaches else ():
            identifier = identifiers.get(hung.get(HOOKS["ingress"], 0), "")
            if identifier:  # else nobody knows whose it was: its pins were gone
                self._attach_again(identifier, link, ifindex)

    def _attach_again(self, identifier: str, link: str, ifindex: int) -> None:
        loaded = self._loaded.get(identifier) or self._load(identifier)
        with suppress(OSError):  # the link has gone meanwhile
            _attach_both(ifindex, loaded)
            self._record("attached again", link=link, ifindex=ifindex, program=loaded.key)

    def _load(self, identifier: str) -> Loaded:
        maps = {direction: bpf.make_state_map("pod_state") for direction in HOOKS}
        programs = {
            direction: bpf.load_filter(fd, protocol=self._protocol, name=f"handle_{direction}") for direction, fd in maps.items()
        }
        for direction in HOOKS:
            bpf.pin(programs[direction], program_pin(identifier, direction))
            bpf.pin(maps[direction], map_pin(identifier, direction))
        self._loaded[identifier] = Loaded(programs, maps)
        return self._loaded[identifier]


class Turns:
    """One request about an identifier at a time, in the order in which they came, whether somebody still waits for the answer or not.

    Source: podIdentifierLock of the real one, a mutex of Go, which hands itself over to whoever waits longest.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[object]] = defaultdict(deque)

    @contextmanager
    def turn(self, identifier: str) -> Iterator[None]:
        """Wait for the block's turn."""
        ticket = object()
        with self._changed:
            queue = self._queues[identifier]
            queue.append(ticket)
            self._changed.wait_for(lambda: queue[0] is ticket)
        try:
            yield
        finally:
            with self._changed:
                queue.popleft()
                self._changed.notify_all()


class Server:
    """Answers `rpc.NPBackend`. The orders say how, each time anew."""

    def __init__(self, memory: Memory, *, record: Callable[..., None]) -> None:
        self._memory = memory
        self._record = record
        self._turns = Turns()

    def enforce(self, request: Mapping[int, Any], context: grpc.ServicerContext) -> bool:
        """EnforceNpToPod."""
        name, namespace = str(request.get(1, "")), str(request.get(2, ""))
        with self._turns.turn(pod_identifier(namespace, name)):
            return self._enforce(namespace, name, request, context)

    def _enforce(self, namespace: str, name: str, request: Mapping[int, Any], context: grpc.ServicerContext) -> bool:
        orders = _orders()
        time.sleep(float(orders.get("slow_s", 0)))
        if orders.get("refuses") or str(request.get(3, "")) not in MODES:
            self._record("refused", pod=f"{namespace}/{name}", request={str(key): value for key, value in request.items()})
            return False
        policy = str(orders.get("policies", {}).get(pod_identifier(namespace, name), ""))
        try:
            self._memory.enforce(namespace, name, mode=str(request[3]), policy=policy)
        except OSError as error:
            self._record("failed", pod=f"{namespace}/{name}", error=str(error))
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return True

    def delete(self, request: Mapping[int, Any], _: grpc.ServicerContext) -> bool:
        """DeletePodNp."""
        name, namespace = str(request.get(1, "")), str(request.get(2, ""))
        with self._turns.turn(pod_identifier(namespace, name)):
            orders = _orders()
            time.sleep(float(orders.get("slow_s", 0)))
            if orders.get("refuses_delete"):
                return False
            self._memory.delete(namespace, name)
            return True

    def listen(self) -> grpc.Server:
        """Serve on the agent's socket."""
        server = grpc.server(ThreadPoolExecutor(max_workers=32))
        methods = {"EnforceNpToPod": self.enforce, "DeletePodNp": self.delete}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=decode, response_serializer=lambda is_ok: b"\x08\x01" if is_ok else b""
            )
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rpc.NPBackend", handlers),))
        Path(SOCKET).unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{SOCKET}")
        server.start()
        return server


def decode(data: bytes) -> dict[int, Any]:
    """Read the fields of a message that has strings and numbers alone, by their numbers."""
    found: dict[int, Any] = {}
    rest = memoryview(data)
    while rest:
        tag, rest = _varint(rest)
        value, rest = _varint(rest)
        if tag & 7 == 2:
            found[tag >> 3], rest = bytes(rest[:value]).decode(), rest[value:]
        else:
            found[tag >> 3] = value
    return found


def _varint(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, data[place + 1 :]
    raise ValueError("a number without an end")


def ask_mode(timeout_s: float) -> str:
    """The mode of the daemon on this node; waits for its socket. Raises: grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{CONFIG_SOCKET}", options=[("grpc.initial_reconnect_backoff_ms", 100)]) as channel:
        question = channel.unary_unary("/rpc.ConfigServerBackend/GetNetworkPolicyConfigs", None, decode)
        return str(question(b"", timeout=timeout_s, wait_for_ready=True).get(1, ""))


def _default(mode: str) -> bpf.PodState:
    return bpf.PodState.DEFAULT_DENY if mode == "strict" else bpf.PodState.DEFAULT_ALLOW


def _orders() -> dict[str, Any]:
    try:
        orders: dict[str, Any] = json.loads(Path(ORDERS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return orders


def _attach_both(ifindex: int, loaded: Loaded) -> None:
    """Filters that another process left there are replaced."""
    tc.add_clsact(ifindex)
    for direction, hook in HOOKS.items():
        program, name = loaded.programs[direction], f"handle_{direction}"
        try:
            tc.add_filter(ifindex, hook, program=program, name=name)
        except FileExistsError:
            tc.delete_filter(ifindex, hook)
            tc.add_filter(ifindex, hook, program=program, name=name)


def _link(namespace: str, name: str) -> tuple[str, int]:
    for prefix in VETH_PREFIXES:
        veth = host_veth(namespace, name, prefix=prefix)
        with suppress(OSError):
            return veth, socket.if_nametoindex(veth)
    raise OSError(f"pod {namespace}/{name} has no link")


def _link_of(namespace: str, name: str) -> dict[str, Any]:
    try:
        link, ifindex = _link(namespace, name)
    except OSError:
        return {}
    return {"link": link, "ifindex": ifindex}


def _pinned_identifiers() -> list[str]:
    suffix = "_handle_ingress"
    return [path.name.removesuffix(suffix) for path in Path(PROGRAMS).iterdir() if path.name.endswith(suffix)]


def _open(identifier: str) -> Loaded:
    return Loaded(
        {direction: bpf.pinned(program_pin(identifier, direction)) for direction in HOOKS},
        {direction: bpf.pinned(map_pin(identifier, direction)) for direction in HOOKS},
    )


def _unpin(identifier: str) -> None:
    for direction in HOOKS:
        for path in (program_pin(identifier, direction), map_pin(identifier, direction)):
            Path(path).unlink(missing_ok=True)


def _prepare() -> None:
    """Mount the bpf file system where it is missing, in this node alone, and make the directories."""
    if not os.path.ismount(BPFFS):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"bpf", BPFFS.encode(), b"bpf", 0, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {BPFFS}")
    for directory in (PROGRAMS, MAPS, str(Path(SOCKET).parent)):
        Path(directory).mkdir(parents=True, exist_ok=True)


def _recorder() -> Callable[..., None]:
    fd = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def record(did: str, **facts: Any) -> None:
        entry = {"did": did, "at_monotonic_s": time.monotonic()} | facts
        os.write(fd, (json.dumps(entry) + "\n").encode())  # one write: a kill leaves whole lines

    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until it is killed; 1 without a valid mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ipv6", action="store_true", help="filter IPv6, and not IPv4")
    parser.add_argument("--wait-s", type=float, default=30.0, help="for the daemon's socket")
    parser.add_argument("--start", choices=("again", "upgraded", "forgetful"), default="again")
    parser.add_argument("--gap-s", type=float, default=0.0, help="how long an upgraded one leaves pods without filters")
    options = parser.parse_args(argv)
    _prepare()
    record = _recorder()
    try:
        mode = ask_mode(options.wait_s)
    except grpc.RpcError as error:
        mode = f"none: {error.code()}"
    if mode.lower() not in MODES:
        record("exits", mode=mode)
        return 1
    memory = Memory(protocol=ETH_P_IPV6 if options.ipv6 else ETH_P_IP, record=record)
    if options.start != "again":
        memory.remove_all(reattaches=options.start == "upgraded", gap_s=options.gap_s)
    server = Server(memory, record=record).listen()
    record("started", mode=mode)
    server.wait_for_termination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
