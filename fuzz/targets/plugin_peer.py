"""A hostile peer on the daemon's socket, against the plugin's whole flow in process: random and damaged HTTP/2, any reply."""

from __future__ import annotations

import errno
from random import Random

from cni_plugin import vpc_cni
from fuzz import cni_model, frames
from fuzz.mutation import mutated, noise
from fuzz.plugin_system import MemorySystem
from fuzz.target import Case, Target, Violation, pieces
from fuzz.targets import envelope

ENVIRONMENT = {"CNI_CONTAINERID": b"a", "CNI_IFNAME": b"eth0", "CNI_NETNS": b"/run/netns/a"}
CONFIG = b'{"cniVersion":"1.0.0","name":"n"}'
SLACK_MS = 20_000
"""Of the clock in memory, a millisecond per call: a peer that sends byte by byte takes as many calls."""


class PluginPeer(Target):
    """A case: `verb`, and of `MemorySystem`: `peer`, `peer_head`, `peer_end`, `chunk`."""

    memory_bytes = 64 << 20

    def generate(self, random: Random) -> Case:
        verb = random.choice(("ADD", "ADD", "DEL", "CHECK", "GC", "STATUS"))
        end = random.choice(("eof", "eof", "stall", errno.ECONNRESET, errno.EPIPE))
        chunk = random.choice((16384, 16384, 16384, 100, 1))
        return {"verb": verb, "peer": conversation(random), "peer_end": end, "chunk": chunk}

    def run(self, case: Case) -> None:
        env = {"CNI_COMMAND": case["verb"].encode(), **ENVIRONMENT}
        if sum(map(len, pieces(case["peer"]))) > 100_000:
            case = {**case, "chunk": 16384}
        system = MemorySystem({**case, "env": env, "stdin": CONFIG})
        started_ms = system.now_ms
        status = vpc_cni.run(system)
        cni_model.judge_exit(status, system.stdout)  # any code may be the peer's
        late_ms = system.now_ms - started_ms - cni_model.DEADLINE_MS[case["verb"]]
        if late_ms > SLACK_MS:
            raise Violation("late", f"{case['verb']} ended {late_ms} ms after its deadline")


def conversation(random: Random) -> bytes | list[tuple[bytes, int]]:
    """Make what a peer sends: noise, a flood, or an answer, whole or damaged."""
    kind = random.random()
    if kind < 0.05:
        return noise(random, 3000)
    if kind < 0.055:
        return [(b"".join(frames.greeting()), 1), *flood(random)]
    payload = mutated(random, envelope.reply(random)) if kind < 0.25 else envelope.reply(random)
    status = b"0" if random.random() < 0.7 else random.choice((b"1", b"4", b"8", b"13", b"14", b"16", b"99", b"x", b"", b"-1"))
    text = mutated(random, b'a%20b%E4%zz\x1b[31m\n"') if random.random() < 0.5 else b""
    talk = [*frames.greeting(), *frames.answer(payload if status == b"0" else b"", status=status, text=text)]
    return b"".join(talk) if kind < 0.4 else frames.damaged(random, talk)


def flood(random: Random) -> list[tuple[bytes, int]]:
    """Make much of one kind: frames, header fields, or fields of a message of the largest size."""
    count = random.choice((300, 3000, 20_000))
    field = random.choice((b"\x12\x00", b"\x08\x01", b"\x1a\x00", b"\x78\x00", b"\xfa\x01\x00"))
    body = (4 << 20) // 16384 - 1
    return random.choice((
        [(frames.any_frame(random), count)],
        [(frames.frame(frames.HEADERS, 4, 1, frames.literal(b":status", b"100")), count)],
        [(frames.frame(frames.HEADERS, 4, 1, random.choice((b"\x88", b"\x3e", b"\x08\x00")) * 8000), count // 10)],
        [(frames.frame(frames.HEADERS, 0, 1, b"\x88"), 1), (frames.frame(frames.CONTINUATION, 0, 1, b"\x88" * 1000), 40)],
        [(frames.frame(frames.HEADERS, 4, 1, b"\x88"), 1), (frames.frame(frames.DATA, 0, 1, b""), count)],
        [
            (frames.frame(frames.HEADERS, 4, 1, b"\x88"), 1),
            (frames.frame(frames.DATA, 0, 1, b"\x00" + (body * 16384).to_bytes(4, "big")), 1),
            (frames.frame(frames.DATA, 0, 1, (field * 16384)[: 16384 // len(field) * len(field)].ljust(16384, b"\0")), body),
            (frames.frame(frames.HEADERS, 5, 1, frames.literal(b"grpc-status", b"0")), 1),
        ],
    ))  # fmt: skip


def make() -> Target:
    """Make the target."""
    return PluginPeer()
