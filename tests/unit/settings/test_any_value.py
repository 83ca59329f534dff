"""Whatever stands in the environment or in the file, reading it ends in settings or in one error that names what is wrong."""

from __future__ import annotations

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from ipamd.model.errors import SettingsError
from ipamd.model.words import printable
from ipamd.settings import describe, load, settings_file, without_meaning
from ipamd.settings.unknown_names import ours
from ipamd.settings.upstream import UPSTREAM

NAMES = sorted(ours() | {row.name for row in UPSTREAM} | {"AWS_REGION", "AWS_ENDPOINT_URL_EC2", "WARM_ENI_TARGETT"})

PIECES = [
    "",
    " ",
    "\0",
    "\n",
    "-",
    "0",
    "1",
    "0x",
    "9" * 400,
    "true",
    "off",
    "/",
    "http://",
    ":",
    "[",
    "]",
    "{",
    "}",
    '"',
    ",",
    "::1",
]
PIECES += [
    "10.0.0.0/8",
    "1e999",
    "NaN",
    "\udc80",
    "\u202e",
    "\u0661",
    "%",
    "e" * 300,
    '{"a":',
    '[{"type":"x"}]',
    "\\ud800",
    "localhost",
]

VALUES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.text(st.characters(), max_size=30),
    st.integers().map(str),
    st.builds(
        lambda piece, count: piece * count, st.sampled_from(["[", "{", "9", "a", '{"a":', " ", "\udfff"]), st.integers(0, 40000)
    ),
)


def _judged(environment: dict[str, str]) -> None:
    """Settings that can be shown, or one error that can be printed."""
    try:
        found = load(environment)
    except SettingsError as error:
        said = printable(str(error), most=1_000_000)
    else:
        said = without_meaning(environment) + "".join(line.env for line in describe(found, environment))
    assert said.isprintable()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_any_value_of_a_setting(environment: dict[str, str]) -> None:
    """No value of any setting ends in anything but settings or an error of ours."""
    environment.pop("VPC_IPAMD_SETTINGS_FILE", None)  # whose files are not ours to open
    _judged(environment)


def test_every_setting_takes_the_worst() -> None:
    """Each piece, and many of it, as the value of each setting."""
    for name in NAMES:
        for piece in PIECES:
            for text in (piece, piece * 200):
                if not text.startswith("/") or name != "VPC_IPAMD_SETTINGS_FILE":
                    _judged({name: text})


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(), max_size=20), VALUES, max_size=3))
def test_any_environment(environment: dict[str, str]) -> None:
    """Nor does any name."""
    environment.pop("VPC_IPAMD_SETTINGS_FILE", None)
    _judged(environment)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*NAMES, "X", "a b", ""]), st.sampled_from(["=", " = ", ""]), VALUES), max_size=4))
def test_any_line_of_a_file(lines: list[tuple[str, str, str]]) -> None:
    """The file's lines are judged as the environment is, and every problem names its line."""
    text = "\n".join("".join(line) for line in lines)
    found, problems = settings_file.parse(text, source="file")
    found.pop("VPC_IPAMD_SETTINGS_FILE", None)
    assert all(one.startswith("file, line ") or "more lines" in one for one in problems)
    _judged(found)


@settings(max_examples=40, deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_in_a_file(content: bytes) -> None:
    """Bytes of any kind are a file of settings, or are named as none."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        _judged({"VPC_IPAMD_SETTINGS_FILE": file.name})
