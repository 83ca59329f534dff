"""The causes of problems: reasons in our own words, and refusals of EC2 as values. Pure.

Where there is little room, a refusal of EC2 is shown only by its call and code. If one condition shows the refusal already, other
conditions only refer to it (REFERENCE). So a refusal is kept as an `Ec2Refusal`, and becomes text only when it is shown. No code has
to search a sentence for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum

from ipamd.model.record import dataclass, field, replace

REFERENCE = "see EC2"
"""Text in place of a refusal that another condition shows."""


class Form(Enum):
    """How much of EC2's refusals a sentence contains, longest first.

    FULL: the whole text.
    CALL: EC2's API and code.
    CODE: EC2's code alone.
    """

    FULL = "full"
    CALL = "call"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Ec2Refusal:
    """A call that EC2 refused, did not answer, or did not get.

    `operation`: the name of the API.
    `subject`: the ENI, subnet or instance that the call was about.
    `code`: EC2's error code; "" if EC2 gave none.
    `text`: what failed, with EC2's message.
    `is_throttled`: whether EC2, or our own call budget, only requires fewer calls, so that waiting is enough.
    """

    operation: str
    subject: str
    code: str
    text: str = field(compare=False)
    is_throttled: bool = field(default=False, compare=False)

    def render(self, form: Form) -> str:
        """Return the refusal in words. If EC2 gave no code there is no short form, so the whole text is returned."""
        if form is Form.FULL or not self.code:
            return self.text
        return f"EC2 {self.operation}: {self.code}" if form is Form.CALL else self.code


@dataclass(frozen=True, slots=True)
class CausePart:
    """One reason.

    `own`: the reason in our own words; "" if EC2's refusal is the whole reason.
    `refusal`: EC2's refusal, if EC2 refused a call; else None.
    `note`: text such as advice that follows the reason.
    """

    own: str = ""
    refusal: Ec2Refusal | None = None
    note: str = ""

    def render(self, form: Form, known: Container[Ec2Refusal]) -> str:
        """Return the reason in words, without the note if a refusal is shortened. `known`: refusals that another condition shows."""
        if self.refusal is None:
            return f"{self.own}{self.note}"
        refused = REFERENCE if self.refusal in known else self.refusal.render(form)
        text = f"{self.own}: {refused}" if self.own else refused
        return f"{text}{self.note}" if form is Form.FULL else text


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason, or several."""

    parts: tuple[CausePart, ...]

    def __str__(self) -> str:
        return self.render()

    def render(self, form: Form = Form.FULL, known: Container[Ec2Refusal] = ()) -> str:
        """Return every reason once, in one line. `known`: refusals that another condition shows, so that REFERENCE is enough."""
        texts = list(dict.fromkeys(part.render(form, known) for part in self.parts))
        if any(text.startswith(REFERENCE) and text != REFERENCE for text in texts):
            texts = [text for text in texts if text != REFERENCE]  # another part has the same reference with a note
        return "; ".join(_without_repeated_advice(texts, [part.note for part in self.parts]))

    @property
    def refusals(self) -> tuple[Ec2Refusal, ...]:
        """The refusals of EC2 among the reasons."""
        return tuple(part.refusal for part in self.parts if part.refusal is not None)

    def about(self, subject: object) -> Cause:
        """Return the cause with `subject`, the object that it is about, in front of its first reason."""
        first, *others = self.parts
        own = f"{subject}: {first.own}" if first.own else str(subject)
        return Cause((replace(first, own=own), *others))

    def noted(self, note: str) -> Cause:
        """Return the cause with a note, such as advice, after its last reason."""
        *others, last = self.parts
        return Cause((*others, replace(last, note=f"{last.note}{note}")))


def _without_repeated_advice(texts: Sequence[str], notes: Iterable[str]) -> list[str]:
    """Leave out those sentences of a note that an earlier text has too: refusals of the same kind share most of their advice."""
    advice = {sentence for note in notes for sentence in note.split("; ")[1:] if sentence}
    seen: set[str] = set()
    kept = []
    for text in texts:
        sentences = text.split("; ")
        kept.append("; ".join(sentence for sentence in sentences if sentence not in seen & advice))
        seen.update(sentences)
    return [text for text in kept if text]


def cause_of_text(text: str) -> Cause:
    """Make a cause of our own words."""
    return Cause((CausePart(text),))


def joined(causes: Iterable[Cause]) -> Cause:
    """Make one cause of several, each reason once."""
    return Cause(tuple(dict.fromkeys(part for cause in causes for part in cause.parts)))


def first_parts(cause: Cause, most: int) -> Cause:
    """Return a cause with the first `most` reasons; if there are more, the text ends with how many were left out."""
    more = len(cause.parts) - most
    return Cause((*cause.parts[:most], CausePart(f"and {more} more"))) if more > 0 else cause
