"""Foreign text made safe to print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.words import TEXT_MAX, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, even with 'quotes' and \\", "plain text, even with 'quotes' and \\"),
        ("Zürich 東京 привет", "Zürich 東京 привет"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("one\nlacks    nothing\r\t", "one\\nlacks    nothing\\r\\t"),
        ("\x9b31m \x7f \x85", "\\x9b31m \\x7f \\x85"),
        ("\u202eabc\u2066\u200b\ufeff", "\\u202eabc\\u2066\\u200b\\ufeff"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\0", "\\x00"),
    ],
    ids=["ascii", "letters", "escape", "lines", "c1", "bidi", "separators", "surrogate", "nul"],
)
def test_what_a_terminal_obeys_is_escaped_and_letters_stay(text: str, shown: str) -> None:
    """Colours, titles, line breaks, overrides of the direction of writing; not other people's alphabets."""
    assert printable(text) == shown


def test_a_long_text_is_cut_and_says_so() -> None:
    """Nobody takes the beginning for the whole."""
    assert printable("x" * TEXT_MAX) == "x" * TEXT_MAX
    assert printable("x" * (TEXT_MAX + 1)) == "x" * TEXT_MAX + f"... ({TEXT_MAX + 1} characters)"


@given(st.text(st.characters(codec=None), max_size=200))
def test_any_text_becomes_one_printable_line_that_can_be_encoded(text: str) -> None:
    """Surrogates included; what was safe is unchanged."""
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()
