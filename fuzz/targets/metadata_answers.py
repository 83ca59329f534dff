"""Instance metadata's answers: malformed documents, odd lists, HTTP that is none. A failed read is a typed error (I11)."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from random import Random

from fuzz import http_answers, json_text
from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation
from ipamd.cloud.metadata import ImdsMetadata
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import IpamError
from ipamd.model.ids import MacAddress
from ipamd.settings import CloudConfig
from tests.fakes.clock import FakeClock

MAC = "02:00:00:00:00:01"
DOCUMENT = {
    "instanceId": "i-1", "instanceType": "m5.large", "region": "us-west-2", "availabilityZone": "us-west-2a", "privateIp": "10.0.0.10",
}  # fmt: skip
TEXTS = (
    b"", b"\n", b"10.0.0.0/16\n10.1.0.0/16", b"10.0.0.1/16", b"10.0.0.300", b"10.0.0.9", b"::1", b"1", b"-1", b"99999999999999999999",
    b"eni-1", b"02:00:00:00:00:01/", b"\xff", b"<html>", b"0", b"sg-1\nsg-2", b"\x1b[1m", b"/", b"a b", b"\xe2\x80\xae", b"1_0",
)  # fmt: skip


class MetadataAnswers(Target):
    """A case: `call` (a method of the port), `answers` (HTTP responses, one for each request; the last one repeats)."""

    memory_bytes = 48 << 20
    cpu_s = 3.0

    def __init__(self) -> None:
        self._log = LogSink()
        self._server = http_answers.HttpAnswers()

    def generate(self, random: Random) -> Case:
        call = random.choice(("identity", "identity", "interface", "list_interfaces"))
        token = http_answers.response(b"token") if random.random() < 0.9 else _answer(random, b"")
        answers: list[object] = [token]
        goods = [b""] if call == "list_interfaces" else [b""] * 4
        if call == "identity":
            goods = [_document(random), MAC.encode(), b"vpc-1", b"10.0.0.0/16", b"eni-1", b"subnet-1", b"10.0.0.0/20", b"sg-1"]
        at = random.randrange(len(goods))
        answers += [_answer(random, good) if index == at or random.random() < 0.05 else http_answers.response(good or b"1")
                    for index, good in enumerate(goods)]  # fmt: skip
        return {"call": call, "answers": answers}

    def run(self, case: Case) -> None:
        self._server.answers = list(case["answers"]) or [b""]
        clock = FakeClock()
        metadata = ImdsMetadata(CloudConfig(imds_endpoint=self._server.url), clock=clock, sleep=clock.advance)
        arguments = (MacAddress(MAC),) if case["call"] == "interface" else ()
        try:
            found = getattr(metadata, case["call"])(*arguments)
        except IpamError as error:
            if not error.message:
                raise Violation("untold", f"an error without a message: {error!r}") from error
        else:
            if isinstance(found, InstanceIdentity):
                _judge_identity(found)
        self._log.judge()

    def close(self) -> None:
        self._server.close()


def _answer(random: Random, good: bytes) -> bytes | list[tuple[bytes, int]]:
    kind = random.random()
    body = good
    if kind < 0.5:
        body = random.choice(TEXTS)
    elif kind < 0.8:
        body = mutated(random, good)
    elif kind < 0.85:
        body = noise(random, 300)
    return http_answers.any_response(
        random, body, status=random.choice((200,) * 12 + (400, 401, 403, 404, 429, 500, 503, 302, 99, 204))
    )


def _document(random: Random) -> bytes:
    if random.random() < 0.5:
        return json.dumps(DOCUMENT).encode()
    made = {key: json.dumps(value) for key, value in DOCUMENT.items()}
    for _ in range(random.choice((1, 1, 2))):
        made[random.choice(list(made))] = json_text.text(random, depth=2)
    if random.random() < 0.2:
        made.pop(random.choice(list(made)))
    inner = ",".join(f"{json.dumps(key)}:{value}" for key, value in made.items())
    return f"{{{inner}}}".encode("utf-8", "surrogatepass")


def _judge_identity(found: InstanceIdentity) -> None:
    """What was read has the types that it promises: it goes into labels, requests and replies."""
    texts = (found.instance_id, found.instance_type, found.region, found.availability_zone, found.vpc_id, found.subnet_id)
    if not all(isinstance(text, str) and text for text in texts):
        raise Violation("wrong type", f"not all are texts: {texts!r:.300}")
    for text in texts:
        text.encode()
    if not isinstance(found.primary_address, IPv4Address) or not all(isinstance(net, IPv4Network) for net in found.vpc_cidrs):
        raise Violation("wrong type", f"{found!r:.300}")


def make() -> Target:
    """Make the target."""
    return MetadataAnswers()
