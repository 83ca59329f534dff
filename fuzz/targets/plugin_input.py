"""The plugin's whole flow in process: any environment, any standard input, any state of the run directory, daemon there or not."""

from __future__ import annotations

import errno
import functools
from random import Random

from cni_plugin import vpc_cni
from fuzz import cni_model, frames, invocations
from fuzz.plugin_system import MemorySystem
from fuzz.raw_peer import message_in
from fuzz.target import Case, Target, Violation, blob
from ipamd.pb import cni_pb2

RESULT = b'{"cniVersion":"1.0.0","ips":[]}'
AWAY_SOCKETS = ("absent", "full", errno.ECONNREFUSED, errno.ENOENT, errno.EMFILE)
UNSAFE_SOCKETS = ("file", "link", "stranger", errno.EACCES, errno.ENOTSOCK)
SPOOLS = ("good", "good", "full", "locked", f"open_lock:{errno.ELOOP}", f"create:{errno.ENOSPC}", f"write:{errno.ENOSPC}",
          f"sync:{errno.EIO}", f"rename:{errno.EIO}", f"make_directory:{errno.ENOTDIR}")  # fmt: skip
GREETING = b"".join(frames.greeting())
SLACK_MS = 200
"""Of the clock in memory, which takes a millisecond per call."""


class PluginInput(Target):
    """See `MemorySystem` for the fields of a case; `reply`: name of what the daemon answers."""

    memory_bytes = 48 << 20

    def generate(self, random: Random) -> Case:
        case: Case = {"env": invocations.environment(random), "stdin": invocations.standard_input(random)}
        if random.random() < 0.1:
            # Byte by byte only what is short: each read takes time of the clock in memory.
            case["chunk"] = random.choice((1, 2, 7, 4096)) if len(blob(case["stdin"])) < 500 else 4096
        if random.random() < 0.05:
            case["stdin_end"] = random.choice(("stall", errno.EISDIR, errno.EBADF, errno.EIO))
        kind = random.random()
        if kind < 0.1:
            case["run_dir"] = random.choice(("absent", "file", "link", "open", "stranger"))
        elif kind < 0.3:
            case["socket"] = random.choice((*AWAY_SOCKETS, *UNSAFE_SOCKETS))
        else:
            case["reply"] = random.choice(("good", "good", "good", *REPLIES))
        case["spool"] = random.choice(SPOOLS)
        return case

    def run(self, case: Case) -> None:
        env, stdin, reply = case["env"], blob(case["stdin"]), case.get("reply", "good")
        peer, end = _peer(reply)
        system = MemorySystem({**case, "peer": peer, "peer_end": end, "peer_head": GREETING})
        started_ms = system.now_ms
        status = vpc_cni.run(system)
        wanted = cni_model.expected(env, stdin, stdin_end=case.get("stdin_end", "eof"))
        document = cni_model.judge_document(status, system.stdout)
        if wanted.must or wanted.verb == "VERSION":
            cni_model.judge_code(wanted, status, document, allowed=frozenset({0}))
            if system.connection_count or system.entries:
                raise Violation("sent", f"{wanted.verb} with invalid input was sent or spooled: {document!r:.300}")
        else:
            cni_model.judge_code(wanted, status, document, allowed=_allowed(case, wanted.verb, reply))
            _judge_effect(system, case, status=status, env=env, stdin=stdin)
        late_ms = system.now_ms - started_ms - cni_model.DEADLINE_MS[wanted.verb]
        if late_ms > SLACK_MS:
            raise Violation("late", f"{wanted.verb} ended {late_ms} ms after its deadline")


REPLIES = {
    "good": cni_pb2.ExecReply(protocol=1, result=RESULT),
    "empty": cni_pb2.ExecReply(protocol=1),
    "error": cni_pb2.ExecReply(protocol=1, error=cni_pb2.CniError(code=123, message='a"\n\x1b[1m\u00e4', cni_version="0.4.0")),
    "code 0": cni_pb2.ExecReply(error=cni_pb2.CniError(message="m")),
    "newer": cni_pb2.ExecReply(protocol=9, result=RESULT),
    "unavailable": 14,
    "cancelled": 1,
    "exhausted": 8,
    "unimplemented": 12,
    "silent": "stall",
    "closes": "eof",
    "resets": errno.ECONNRESET,
}
CODES = {"good": {0}, "empty": {0}, "error": {123}, "code 0": {192}, "newer": {194}, "unimplemented": {193}}


@functools.cache
def _peer(name: str) -> tuple[bytes, object]:
    reply = REPLIES[name]
    if isinstance(reply, cni_pb2.ExecReply):
        return b"".join(frames.answer(reply.SerializeToString())), "eof"
    if name in ("silent", "closes", "resets"):
        return b"", reply
    return b"".join(frames.answer(b"", status=str(reply).encode(), text=b"no%20%ff")), "eof"


def _allowed(case: Case, verb: str, reply: str) -> frozenset[int]:
    """Codes that the surroundings deserve, 0 for success."""
    unserved = {50 if verb == "STATUS" else 11}
    if case.get("run_dir", "good") != "good":
        return frozenset({191} if case["run_dir"] != "absent" else unserved | ({5, 7} if verb == "DEL" else set()))
    socket = case.get("socket", "good")
    if socket in UNSAFE_SOCKETS:
        return frozenset({191})
    if socket == "good" and reply in CODES:
        return frozenset(CODES[reply])
    return frozenset({0, 5, 7, 11, 191} if verb == "DEL" else unserved)


def _judge_effect(system: MemorySystem, case: Case, *, status: int, env: dict[str, bytes], stdin: bytes) -> None:
    """What the daemon got, or the spool: every DEL that succeeds was answered or is spooled (I3), and nothing else is spooled."""
    is_answered = case.get("socket", "good") == "good" and case.get("run_dir", "good") == "good" and case["reply"] in CODES
    left = sorted(name.rpartition("/")[2][:4] for name in system.entries)
    if status == 0 and not is_answered:
        if env["CNI_COMMAND"] != b"DEL" or left != ["del-"]:
            raise Violation("lost DEL", f"success of {env['CNI_COMMAND']!r} without answer or entry: {left}")
        judge_request(next(iter(system.entries.values())), env, stdin)
    elif left:
        raise Violation("leftover", f"in the spool after exit status {status}: {left}")
    if status == 0 and is_answered:
        if system.stdout != (RESULT if case["reply"] == "good" else b""):
            raise Violation("differs", f"printed {system.stdout[:200]!r}")
        judge_request(message_in(system.sent), env, stdin)


def judge_request(data: bytes, env: dict[str, bytes], stdin: bytes) -> None:
    """Judge that a request says what the runtime said. Raises: Violation."""
    read = cni_pb2.ExecRequest.FromString(data)
    names = {"verb": "CNI_COMMAND", "args": "CNI_ARGS", "path": "CNI_PATH"}
    if read.verb in cni_model.SANDBOX_VERBS:
        names |= {"container_id": "CNI_CONTAINERID", "ifname": "CNI_IFNAME", "netns": "CNI_NETNS"}
    for field, name in names.items():
        if getattr(read, field).encode() != env.get(name, b""):
            raise Violation(
                "differs", f"{field} is {getattr(read, field)!r:.100} in the request, {env.get(name)!r:.100} was given"
            )
    if read.config != stdin:
        raise Violation("differs", f"the request has a configuration of {len(read.config)} bytes, {len(stdin)} were given")


def make() -> Target:
    """Make the target."""
    return PluginInput()
