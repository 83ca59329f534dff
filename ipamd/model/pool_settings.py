"""The targets of the pool, as the planner takes them; `ipamd/config.py` reads them from the environment."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.model.errors import SettingsError


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `max_eni` caps ENIs per network card below the instance's limit; 0: no cap. `max_pods` caps the pool; 0: no cap.
    """

    warm_eni_target: int = 1
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    warm_prefix_target: int = 0
    max_eni: int = 0
    max_pods: int = 0
    prefix_delegation: bool = False

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}", details="targets and caps must not be negative")

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set; they replace WARM_ENI_TARGET and WARM_PREFIX_TARGET."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0
