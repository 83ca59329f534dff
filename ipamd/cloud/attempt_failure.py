"""How an attempt to call EC2 failed, as values. The process that calls EC2 makes them, and `errors.py` makes errors of them.

They are in a module of their own, because that process does without our tree of errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipamd.cloud.bounded_http import AnswerLimitError, broken_bound
from ipamd.model.record import dataclass

TEXT_MAX = 4800
"""Characters that are kept of an exception's text. Ours: `errors.py` quotes less of it."""


class UnreadableAnswerError(Exception):
    """The answer is not from EC2: it is HTML, empty, or XML of another kind."""


@dataclass(frozen=True)
class AttemptFailure:
    """How an attempt failed, as values that can be passed from one process to another.

    `names`: the class names of the exception, if EC2 did not answer with an error.
    `text`: EC2's message, or that of the exception.
    `endpoint`: the URL that was called, for people.
    `code`, `status`: EC2's code and the HTTP status, if EC2 answered with an error; else None and 0.
    `lack`: the fields of a `MissingCredentials`, if there were no credentials.
    """

    names: list[str]
    text: str
    endpoint: str = ""
    code: str | None = None
    status: int = 0
    lack: Mapping[str, str] | None = None


def failure_of(exc: Exception, endpoint: str) -> AttemptFailure:
    """Describe a botocore exception that is not an answer of EC2."""
    cause = broken_bound(exc) or getattr(exc, "kwargs", {}).get("error")
    reported = cause if isinstance(cause, AnswerLimitError | UnreadableAnswerError) else exc
    names = [kind.__name__ for kind in (*type(exc).__mro__, type(reported))]
    return AttemptFailure(names, str(reported)[:TEXT_MAX], endpoint)
