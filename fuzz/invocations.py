"""Invocations of a CNI plugin, good and bad: environment and standard input. No value has a NUL, for no environment can."""

from __future__ import annotations

from random import Random

from fuzz import json_text
from fuzz.mutation import mutated, noise

VERBS = (b"ADD", b"DEL", b"CHECK", b"GC", b"STATUS", b"VERSION")
GOOD = {
    "CNI_CONTAINERID": (b"5a" * 32, b"a", b"0_.-Z", b"a" * 160),
    "CNI_IFNAME": (b"eth0", b"e", b"e" * 15, b"...", b"\xc3\xa4"),
    "CNI_NETNS": (b"/run/netns/sandbox", b"/", b"/" + b"a" * 4095),
    "CNI_ARGS": (b"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID=u", b"", b";;=;", b"a" * 5000),
    "CNI_PATH": (b"/opt/cni/bin", b"", b"p" * 10000),
}
BAD = {
    "CNI_COMMAND": (b"", b"add", b"ADD ", b"UPDATE", b"ADDADD", b"\xff"),
    "CNI_CONTAINERID": (b"", b"-a", b".", b"a/b", b"a b", b"a\n", b"a" * 201, b"\xff", b"a\xed\xa0\x80", b"\xc3\xa4"),
    "CNI_IFNAME": (b"", b".", b"..", b"a/b", b"a:b", b"a\n", b"a" * 16, b"\xff", b"\xc2\xa0", b"e%d", b"\xc3\xa4" * 8),
    "CNI_NETNS": (b"", b"relative", b"/" + b"a" * 4096, b"/\xff", b"\n"),
    "CNI_ARGS": (b"\xff", b"a=\xed\xa0\x80", b"K8S_POD_NAME=\x1b[31m", b"=" * 3000),
    "CNI_PATH": (b"\xc3", b"\n"),
    "VPC_IPAMD_RUN_DIR": (b"relative", b"/" + b"a" * 107, b"/\xff", b"\n", b"/"),
}


def environment(random: Random, *, verb: bytes = b"", is_bad: bool | None = None) -> dict[str, bytes]:
    """Make an environment; a bad one has one or more wrong, missing or damaged variables."""
    env = {"CNI_COMMAND": verb or random.choice(VERBS)}
    env |= {name: random.choice(values) if random.random() < 0.3 else values[0] for name, values in GOOD.items()}
    if is_bad if is_bad is not None else random.random() < 0.4:
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            _spoil(random, env)
    return {name: value.replace(b"\0", b"") for name, value in env.items()}


def _spoil(random: Random, env: dict[str, bytes]) -> None:
    name = random.choice(list(BAD))
    kind = random.random()
    if kind < 0.15:
        env.pop(name, None)
    elif kind < 0.6:
        env[name] = random.choice(BAD[name])
    elif kind < 0.9:
        env[name] = mutated(random, env.get(name, b"/run/x"))
    else:
        env[name] = noise(random, 300)


def standard_input(random: Random) -> bytes | list[tuple[bytes, int]]:
    """Make a configuration; one in two hundred is about as large as may be, or larger."""
    if random.random() < 0.995:
        return json_text.configuration(random)
    part = random.choice(
        (b" ", b"{", b'"', b'\\"', b"[[", b'"a":', b'{"cniVersion":"1.0.0"}', b'"cniVersion"', b"\xff", b'{"a":"b"},')
    )
    count = random.choice((7 << 18, (7 << 18) + 1, (7 << 18) - 30, 300_000)) // len(part)
    return [
        (random.choice((b"{", b"", b'{"cniVersion":"1.0.0","x":"')), 1),
        (part, count),
        (random.choice((b"}", b"", b'"}')), 1),
    ]
