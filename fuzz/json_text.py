"""Network configurations and other JSON, good and strange: keys that matter, values that break parsers, damaged text."""

from __future__ import annotations

import json
from random import Random
from typing import Any, NoReturn

from fuzz.mutation import mutated, noise

VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
STRANGE_STRINGS = (
    "", "1.0.0", "0.2.0", "2.0.0", "1.0.0\x00", "a" * 33, "a" * 1000, "\ud800", "\udfff", "\U0001f600", "\x1b[2J", "\x7f", "\x80",
    "\u2028", "%s%n", "{}", '"', "\\", "/", "../..", "NaN", "null", "\u00e4", "cniVersion", '"cniVersion":"9"', "\ufeff",
)  # fmt: skip
STRANGE_SCALARS = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "0.1", "1E+2", "9" * 400, "1" * 4400, "01", "+1", ".5", "1.",
    "true", "false", "null", "True", "nul", "0x10", "''", "",
)  # fmt: skip
KEYS = (
    "cniVersion", "name", "type", "prevResult", "cni.dev/valid-attachments", "runtimeConfig", "plugins", "ips", "interfaces",
    "routes", "dns", "address", "interface", "sandbox", "mtu", "version", "containerID", "ifname", "cniversion", "",
)  # fmt: skip
SPACES = ("", "", "", " ", "\n", "\t", "\r\n  ")


def reject_constant(text: str) -> NoReturn:
    """Refuse what Python's `json` reads and JSON does not have. Raises: ValueError."""
    raise ValueError(f"{text} is not JSON")


def strict(document: bytes) -> Any:
    """Parse JSON as other languages do: UTF-8, no NaN, no number beyond a double's range. Raises: ValueError."""
    return json.loads(document.decode(), parse_constant=reject_constant, parse_float=_float)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} does not fit into a double")
    return value


def text(random: Random, *, depth: int = 4) -> str:
    """Make any value; mostly JSON, sometimes with one scalar that is not."""
    kind = random.random()
    if depth <= 0 or kind < 0.45:
        return _scalar(random)
    if kind < 0.65:
        return "[" + ",".join(text(random, depth=depth - 1) for _ in range(random.randrange(4))) + "]"
    return _object(random, [(_key(random), text(random, depth=depth - 1)) for _ in range(random.randrange(5))])


def configuration(random: Random) -> bytes:
    """Make a network configuration: usually an object with what we read, now and then damaged or no JSON at all."""
    kind = random.random()
    if kind < 0.03:
        return noise(random, 300)
    if kind < 0.06:
        return b"%s%s" % (random.choice((b"[", b'{"a":', b'"', b"{", b"\\")) * random.randrange(1, 3000), noise(random, 8))
    made = members(random)
    data = _object(random, made).encode("utf-8", "surrogatepass")
    return mutated(random, data) if kind < 0.35 else data


def members(random: Random) -> list[tuple[str, str]]:
    """Make the members of a configuration, as JSON text, in any order and some twice."""
    made = [("cniVersion", _version(random)), ("name", json.dumps("vpc-ipamd")), ("type", json.dumps("vpc-cni"))]
    if random.random() < 0.3:
        made.append(("prevResult", _result(random)))
    if random.random() < 0.3:
        made.append(("cni.dev/valid-attachments", _attachments(random)))
    made += [(_key(random), text(random, depth=3)) for _ in range(int(random.random() ** 2 * 4))]
    if random.random() < 0.4:
        random.shuffle(made)
    if random.random() < 0.1:
        made.pop(random.randrange(len(made)))
    return made


def _version(random: Random) -> str:
    kind = random.random()
    if kind < 0.8:
        return json.dumps(random.choice(VERSIONS))
    return _string(random) if kind < 0.95 else text(random, depth=2)


def _result(random: Random) -> str:
    if random.random() < 0.3:
        return text(random, depth=4)
    sections = []
    for name in ("interfaces", "ips", "routes", "dns"):
        if random.random() < 0.7:
            entries = [_entry(random) for _ in range(random.randrange(3))]
            sections.append((name, "[" + ",".join(entries) + "]" if random.random() < 0.9 else text(random, depth=2)))
    return _object(random, [("cniVersion", _version(random)), *sections])


def _entry(random: Random) -> str:
    names = ("name", "mac", "sandbox", "mtu", "address", "gateway", "interface", "dst", "gw", "version", "priority")
    values = ('"eth0"', '"10.0.0.9/32"', '"/run/netns/a"', "0", "1500", '"02:00:00:00:00:01"')
    made = []
    for name in names:
        if random.random() < 0.4:
            made.append((name, random.choice(values) if random.random() < 0.8 else text(random, depth=1)))
    return _object(random, made)


def _attachments(random: Random) -> str:
    if random.random() < 0.2:
        return text(random, depth=3)
    entries = []
    for _ in range(random.randrange(4)):
        container = json.dumps(f"sandbox{random.randrange(8)}") if random.random() < 0.8 else text(random, depth=1)
        entries.append(_object(random, [("containerID", container), ("ifname", '"eth0"')]))
    return "[" + ",".join(entries) + "]"


def _object(random: Random, made: list[tuple[str, str]]) -> str:
    space = random.choice(SPACES)
    inner = ",".join(f"{space}{_quoted(random, key)}{space}:{space}{value}{space}" for key, value in made)
    return f"{space}{{{inner}}}{space}"


def _scalar(random: Random) -> str:
    kind = random.random()
    if kind < 0.4:
        return _string(random)
    return str(random.randrange(-5, 70000)) if kind < 0.75 else random.choice(STRANGE_SCALARS)


def _string(random: Random) -> str:
    return _quoted(random, random.choice(STRANGE_STRINGS) if random.random() < 0.7 else _characters(random))


def _characters(random: Random) -> str:
    return "".join(
        chr(random.choice((random.randrange(128), random.randrange(0x800), random.randrange(0x11000)))) for _ in range(8)
    )


def _key(random: Random) -> str:
    return random.choice(KEYS) if random.random() < 0.8 else random.choice(STRANGE_STRINGS)


def _quoted(random: Random, value: str) -> str:
    if random.random() < 0.05:  # every character as an escape
        units = value.encode("utf-16-be", "surrogatepass")
        return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)) + '"'
    return json.dumps(value, ensure_ascii=random.random() < 0.5)
