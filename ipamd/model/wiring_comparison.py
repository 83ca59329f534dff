"""Compare the wiring of a sandbox on the host with its record. CHECK, the repair and the audit all use this comparison."""

from __future__ import annotations

from ipamd.model.attachment import WiringSpec
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs import legs_of
from ipamd.model.wiring_difference import WiringDifference


def wiring_differences(spec: WiringSpec, survey: KernelSurvey) -> list[WiringDifference]:
    """Compare host veths, routes and rules of a sandbox with what a survey shows."""
    return [difference for leg in legs_of(spec) for difference in leg.differences(survey)]
