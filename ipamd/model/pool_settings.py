"""The targets of the pool, as the planner takes them; `ipamd/settings/` reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipamd.model.errors import SettingsError

RELEASE_HOLD_S = 3600.0
"""How long addresses and /28s are in excess before they are given back. Ours (docs/adr/0028): longer than a rolling update keeps its
surplus, and than most periods of jobs; an hour is the knee of calls against addresses held (docs/fleet.md). amazon-vpc-cni-k8s
waits 30 s (pkg/ipamd/ipamd.go, decreaseIPPoolInterval)."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `max_eni` caps ENIs per network card below the instance's limit; 0: no cap. `max_pods` caps the pool; 0: no cap.
    `warm_target_auto`: `warm_ip_target` follows demand (`ipamd/model/auto_target.py`).
    `release_hold_s`: what was in excess for so many seconds is given back. `spare_eni_delay_s`: after an ADD an ENI that only
    WARM_ENI_TARGET or WARM_PREFIX_TARGET wants is asked for so many seconds later; 0: at once.
    """

    warm_eni_target: int = 1
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    warm_prefix_target: int = 0
    max_eni: int = 0
    max_pods: int = 0
    prefix_delegation: bool = False
    warm_target_auto: bool = False
    release_hold_s: float = RELEASE_HOLD_S
    spare_eni_delay_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}", details="targets and caps must not be negative")
        if not 0 < self.release_hold_s < math.inf:
            raise SettingsError(f"release_hold_s is {self.release_hold_s}", details="it takes a number of seconds above 0")
        if not 0 <= self.spare_eni_delay_s < math.inf:
            raise SettingsError(
                f"spare_eni_delay_s is {self.spare_eni_delay_s}", details="it takes a number of seconds, 0 at least"
            )

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set or follows demand; they replace the other targets."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0 or self.warm_target_auto
