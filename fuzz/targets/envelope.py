"""The plugin's hand-written protobuf against the generated code: replies in, requests out."""

from __future__ import annotations

from random import Random

from google.protobuf.message import DecodeError

from cni_plugin import envelope
from cni_plugin.errors import PeerError
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.pb import cni_pb2

TEXT = ("", "a", "1.0.0", "\u00e4", "x" * 200, "\x00", "{}")


class Envelope(Target):
    """A case: `reply` is what a peer sends as ExecReply, `config` goes into a request."""

    memory_bytes = 48 << 20

    def generate(self, random: Random) -> Case:
        kind = random.random()
        if kind < 0.05:
            return {"reply": noise(random, 200), "config": noise(random, 300)}
        if kind < 0.0505:  # as many fields as fit into the largest message
            return {
                "reply": [(random.choice((b"\x08\x01", b"\x12\x00", b"\x78\x00")), random.randint(1, 400_000))],
                "config": b"",
            }
        good = reply(random)
        return {"reply": mutated(random, good) if kind < 0.8 else good, "config": noise(random, 300)}

    def run(self, case: Case) -> None:
        _judge_reply(blob(case["reply"]))
        config = blob(case["config"])
        made = envelope.encode_request("ADD", container_id=b"a", config=config, plugin_version="1")
        read = cni_pb2.ExecRequest.FromString(made)
        if (read.verb, read.container_id, read.config, read.plugin_version) != ("ADD", "a", config, "1"):
            raise Violation("differs", f"the request is read as {read!s:.300}")


def reply(random: Random) -> bytes:
    """Make a reply as the daemon would, with unusual values."""
    made = cni_pb2.ExecReply(protocol=random.choice((0, 1, 1, 1, 2, 1 << 32 - 1)))
    if random.random() < 0.5:
        made.result = random.choice((b"", b'{"cniVersion":"1.0.0"}', b"{", b"NaN", noise(random, 64)))
    if random.random() < 0.4:
        made.error.code = random.choice((0, 1, 7, 11, 99, 100, 190, (1 << 32) - 1))
        made.error.message, made.error.details = random.choice(TEXT), random.choice(TEXT)
        made.error.cni_version = random.choice(TEXT)
    return made.SerializeToString()


def _judge_reply(data: bytes) -> None:
    try:
        ours = envelope.decode_reply(data)
    except PeerError:
        return  # stricter than the generated code is allowed: groups, text that is not UTF-8
    try:
        theirs = cni_pb2.ExecReply.FromString(data)
    except DecodeError:
        return  # less strict too: a text that is not UTF-8 is repaired where it is printed
    error = theirs.error
    expected = (theirs.protocol, theirs.result, theirs.HasField("error"), error.code, error.message, error.details)
    found = (ours.protocol, ours.result, ours.is_error, ours.code, ours.message.decode(), ours.details.decode())
    if found != expected or ours.cni_version.decode() != error.cni_version:
        raise Violation("differs", f"{found!r:.300} instead of {expected!r:.300}")


def make() -> Target:
    """Make the target."""
    return Envelope()
