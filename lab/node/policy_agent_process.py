"""A stand-in for aws-network-policy-agent: `python -m lab.node.policy_agent_process`, inside a node. `policy_agent.py` starts it.

It does the following in the same way as the real agent, because a daemon that assigns and unassigns addresses depends on it:

- Before anything else it asks the daemon's `rpc.ConfigServerBackend` for the mode, and exits if it gets no valid mode.
- It finds a pod's link by the link's name, which is a hash of the pod's name, and attaches real eBPF filters to it. Until a policy for
  the pod comes, these deny all packets in the mode strict, and allow all in the mode standard. Pods whose names differ only in their
  last part share programs and maps, which are pinned.
- It remembers pod *names*. For a name that it remembers it attaches nothing, even if the pod has another link now. DeletePodNp makes
  it forget the name. With the last name of a program it also removes the program's pins, though the link of a newer sandbox may still
  use the program. After a restart it remembers no name, and finds programs by their pins.

The field numbers of messages are written here by hand, and not taken from the daemon's generated code, so that a wrong number there
shows. Every action on a link is appended to a record, a file that outlives the process. Sources: aws-network-policy-agent
pkg/ebpf/bpf_client.go, pkg/rpc/rpc_handler.go, main.go, pkg/utils/utils.go; amazon-vpc-cni-k8s rpc/rpc.proto. Left out: conntrack,
rules (a policy passes all packets or none), events, and the API server (`policy_agent.py` sends policies in its place).
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
"""Direction as the pod sees it -> hook of the pod's host veth. Packets to the pod leave the host through the veth, and packets of the
pod arrive on it."""

_POLICIES = {"allow": bpf.PodState.DEFAULT_ALLOW, "deny": bpf.PodState.DEFAULT_DENY}


def pod_identifier(namespace: str, name: str) -> str:
    """Return the identifier that the replicas of a pod share: its name without the last part, with dots as underscores, and its
    namespace."""
    return f"{(name.rpartition('-')[0] or name).replace('.', '_')}@{namespace}"


def host_veth(namespace: str, name: str, *, prefix: str) -> str:
    """Return the name of a pod's host veth."""
    return prefix + hashlib.sha1(f"{namespace}.{name}".encode(), usedforsecurity=False).hexdigest()[:11]


def program_pin(identifier: str, direction: str) -> str:
    """Return the path at which the program of an identifier and a direction is pinned."""
    return f"{PROGRAMS}/{identifier}_handle_{direction}"


def map_pin(identifier: str, direction: str) -> str:
    """Return the path at which the map with that program's state is pinned."""
    return f"{MAPS}/{identifier}_{direction}_pod_state_map"


@dataclass(frozen=True)
class Loaded:
    """The two programs of an identifier and their maps: direction -> file descriptor."""

    programs: Mapping[str, int]
    maps: Mapping[str, int]

    @property
    def key(self) -> int:
        """The number by which records name the two programs: the kernel's ID of the ingress program."""
        return bpf.program_id(self.programs["ingress"])

    def set_state(self, state: bpf.PodState) -> None:
        """Set whether both programs pass packets."""
        for fd in self.maps.values():
            bpf.set_state(fd, state)


class Memory:
    """The agent's memory of pod names and programs, and its actions on links. Concurrency: any thread; changes exclude each other."""

    def __init__(self, *, protocol: int, record: Callable[..., None]) -> None:
        """Open the programs that an earlier process pinned. No pod name is remembered yet."""
        self._protocol = protocol
        self._record = record
        self._lock = threading.Lock()
        self._program_of: dict[tuple[str, str], int] = {}
        self._loaded = {identifier: _open(identifier) for identifier in _pinned_identifiers()}

    def enforce(self, namespace: str, name: str, *, mode: str, policy: str) -> None:
        """Attach the filters to a pod's link, unless the pod's name is remembered.

        Args:
            policy: the policy for the pod, "allow" or "deny"; "" if none has come yet.
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
        """Forget a pod's name. If no other name uses its programs, also unpin the programs and maps."""
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
        """Remove every filter, as a new version of the agent does at its start.

        `reattaches`: whether new programs are attached to these links, after `gap_s`.
        """
        filtered = {link: (ifindex, programs) for link, (ifindex, programs) in tc.links(VETH_PREFIXES).items() if programs}
        identifiers = {loaded.key: identifier for identifier, loaded in self._loaded.items()}
        for link, (ifindex, programs) in filtered.items():
            tc.delete_qdisc(ifindex)
            self._record("removed", link=link, ifindex=ifindex, program=programs.get(HOOKS["ingress"], 0))
        for identifier in list(self._loaded):
            _unpin(identifier)
        self._loaded.clear()
        time.sleep(gap_s)
        for link, (ifindex, programs) in filtered.items() if reattaches else ():
            identifier = identifiers.get(programs.get(HOOKS["ingress"], 0), "")
            if identifier:  # otherwise the program had no pins any more, so the agent cannot find out for which pods it was
                self._attach_again(identifier, link, ifindex)

    def _attach_again(self, identifier: str, link: str, ifindex: int) -> None:
        loaded = self._loaded.get(identifier) or self._load(identifier)
        with suppress(OSError):  # the link was deleted meanwhile
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
    """Serves requests about the same identifier one after another, in the order of their arrival, even if a caller has given up.

    Source: podIdentifierLock of the real agent, a mutex of Go, which goes to the request that has waited longest.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[object]] = defaultdict(deque)

    @contextmanager
    def turn(self, identifier: str) -> Iterator[None]:
        """Enter the context when all earlier requests about the identifier have ended."""
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
    """Answers `rpc.NPBackend`. For each request it reads the file ORDERS, which can make it slow or make it refuse."""

    def __init__(self, memory: Memory, *, record: Callable[..., None]) -> None:
        self._memory = memory
        self._record = record
        self._turns = Turns()

    def enforce(self, request: Mapping[int, Any], context: grpc.ServicerContext) -> bool:
        """Answer EnforceNpToPod: whether the pod's filters are attached."""
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
        """Answer DeletePodNp: whether the pod's name is forgotten."""
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
    """Read a protobuf message that has only strings and numbers. Returns: field number -> value."""
    fields: dict[int, Any] = {}
    rest = memoryview(data)
    while rest:
        tag, rest = _varint(rest)
        value, rest = _varint(rest)
        if tag & 7 == 2:
            fields[tag >> 3], rest = bytes(rest[:value]).decode(), rest[value:]
        else:
            fields[tag >> 3] = value
    return fields


def _varint(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, data[place + 1 :]
    raise ValueError("a number without an end")


def ask_mode(timeout_s: float) -> str:
    """Ask the daemon on this node for its network policy mode, and wait for its socket. Raises: grpc.RpcError."""
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
    """Attach the two programs to a link, in place of filters that another process left there."""
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
    """Mount the bpf file system in this node if it is missing, and make the directories."""
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
        os.write(fd, (json.dumps(entry) + "\n").encode())  # in one write, so that a kill leaves only whole lines

    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the process is killed. Returns: 1 if the daemon reports no valid mode."""
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
