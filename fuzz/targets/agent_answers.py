"""The network policy agent's answers: damaged HTTP/2 and gRPC, odd statuses, odd messages, through the real client.

A question ends at its time, with success or an error of our tree in words that are safe to print; the channel serves the next one.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from random import Random

from fuzz import frames
from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.raw_peer import RawPeer
from fuzz.target import Case, Target, Violation
from ipamd.model.errors import IpamError, PolicyAgentRefusedError, PolicyAgentSilentError, log_text
from ipamd.model.ids import PodName
from ipamd.pb import network_policy_pb2 as pb
from ipamd.policy.agent import GrpcPolicyAgent

POD = PodName("default", "web-0")
QUESTION_S = 0.25
PATIENT_S = 20.0
GOOD = pb.EnforceNpReply(Success=True).SerializeToString()
BAD = pb.EnforceNpReply(Success=False).SerializeToString()
STATUSES = (b"0", b"1", b"2", b"4", b"8", b"12", b"13", b"14", b"16", b"17", b"-1", b"", b"x", b"99999999999999999999")
TEXTS = (b"", b"no", b"a%0A%1B[31mb", b"%", b"%ZZ", b"\xff\xfe", b"\x1b[2J\nforged", b"%E2%80%AE", b"x" * 119)
ERROR_CHARACTERS_MAX = 2000
TRIES, PAUSE_S = 20, 0.1

GOAWAY_CODE_MAX = 12
"""grpcio from 1.84.0 on ends the process when GOAWAY has a higher error code, of which 13 is a valid one (1.85.3; 1.83.0 does not).
Nothing on our side keeps it from that, so such a case is left out (docs/invariants.md, I16)."""


class AgentAnswers(Target):
    """A case: `greeting` (sent at once), `answer` (sent after the question), `is_patient` (whether the question is awaited)."""

    memory_bytes = 48 << 20
    batch = 50

    def __init__(self) -> None:
        self._log = LogSink()
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        path = self._directory / "npa.sock"
        self._peer = RawPeer(path)
        self._agent = GrpcPolicyAgent(socket=str(path))

    def generate(self, random: Random) -> Case:
        greeting, answer = frames.greeting(), frames.answer(_payload(random), status=_status(random), text=random.choice(TEXTS))
        if random.random() < 0.2:
            answer = [frames.any_frame(random) for _ in range(random.randrange(1, 40))]
        return {
            "greeting": _perhaps_damaged(random, greeting, share=0.15),
            "answer": _perhaps_damaged(random, answer, share=0.6),
            "is_patient": random.random() < 0.9,
        }

    def run(self, case: Case) -> None:
        if _ends_grpcio(case["greeting"] + case["answer"]):
            return
        self._play(case)
        try:
            self._agent.enforce(POD, mode="strict", timeout_s=QUESTION_S)
        except (PolicyAgentRefusedError, PolicyAgentSilentError) as error:
            text = log_text(error)
            if not text.isprintable() or len(text) > ERROR_CHARACTERS_MAX:
                raise Violation("text", f"{len(text)} characters: {text[:300]!r}") from error
        self._log.judge()

    def check(self) -> None:
        self._play({"greeting": b"".join(frames.greeting()), "answer": b"".join(frames.answer(GOOD)), "is_patient": True})
        for _ in range(TRIES):  # connections that were made for the case before still break under the first ones
            try:
                self._agent.enforce(POD, mode="strict", timeout_s=PATIENT_S)
            except IpamError as error:
                problem = log_text(error)
                time.sleep(PAUSE_S)
            else:
                return
        raise Violation("unanswered", f"a good answer is not read any more: {problem}")

    def close(self) -> None:
        self._agent.close()
        self._peer.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _play(self, case: Case) -> None:
        self._peer.greeting, self._peer.answer, self._peer.is_patient = case["greeting"], case["answer"], case["is_patient"]
        self._peer.requests.clear()


def _payload(random: Random) -> bytes:
    good = random.choice((GOOD, GOOD, BAD))
    kind = random.random()
    if kind < 0.5:
        return good
    return mutated(random, good) if kind < 0.8 else noise(random, 100_000)


def _status(random: Random) -> bytes:
    return b"0" if random.random() < 0.6 else random.choice(STATUSES)


def _perhaps_damaged(random: Random, sent: list[bytes], *, share: float) -> bytes:
    return frames.damaged(random, sent) if random.random() < share else b"".join(sent)


def _ends_grpcio(sent: bytes) -> bool:
    """Whether there is a GOAWAY among the frames whose code grpcio has no name for."""
    at = 0
    while at + 9 <= len(sent):
        length, kind = int.from_bytes(sent[at : at + 3], "big"), sent[at + 3]
        code = sent[at + 13 : at + 17]
        if kind == frames.GOAWAY and int.from_bytes(code, "big") > GOAWAY_CODE_MAX:
            return True
        at += 9 + length
    return False


def make() -> Target:
    """Make the target."""
    return AgentAnswers()
