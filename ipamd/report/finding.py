"""One difference that the audit found: its code, its subject, and its fields. The parts of the audit share this type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ipamd.model.errors import IpamError, log_text
from ipamd.model.finding_codes import FindingCode, Severity, severity_of
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.record import dataclass
from ipamd.report.finding_messages import finding_next, finding_text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One difference that the audit found.

    `code`: the kind of difference.
    `subject`: the address, ENI, link or pod that differs.
    `fields`: the values for the names in braces in the sentences of the code, as text.
    """

    code: FindingCode | LegFindingCode
    subject: str
    fields: Mapping[str, str]

    @property
    def severity(self) -> Severity:
        """The severity of the difference: violation, difference or pending."""
        return severity_of(self.code)

    @property
    def text(self) -> str:
        """How the sources differ, in a sentence."""
        return finding_text(self.code, self.fields)

    @property
    def next(self) -> str:
        """The next step and who does it, in a sentence."""
        return finding_next(self.code, self.fields)


def finding(code: FindingCode | LegFindingCode, subject: object, **fields: object) -> AuditFinding:
    """Make a finding. Subject and fields are converted to text."""
    return AuditFinding(code, str(subject), {name: str(value) for name, value in fields.items()})


def ask_source(source: str, question: Callable[[], T], silent: list[str]) -> T | None:
    """Call `question`. If it fails, add the error to `silent` under the name of the source, and return None."""
    try:
        return question()
    except IpamError as error:
        silent.append(f"{source}: {log_text(error)}")
        return None
