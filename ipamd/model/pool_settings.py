"""The targets of the pool in the planner's form; `ipamd/settings/` reads them."""

from __future__ import annotations

import math

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family
from ipamd.model.record import dataclass

RELEASE_HOLD_S = 3600.0
"""How long addresses and /28s are in excess before they are released. Ours (docs/pool.md, Release): longer than the surplus of a
rolling update lasts, and than most periods of jobs; an hour is the knee of calls against addresses held (docs/performance.md).
amazon-vpc-cni-k8s waits 30 s (pkg/ipamd/ipamd.go, decreaseIPPoolInterval)."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `max_eni` caps ENIs per network card below the instance's limit; 0: no cap. `max_pods` caps the pool; 0: no cap.
    `warm_target_auto`: `warm_ip_target` follows demand (`ipamd/model/auto_target.py`).
    `release_hold_s`: a surplus that lasted for so many seconds is released.
    `spare_eni_delay_s`: seconds after an ADD until an ENI that only WARM_ENI_TARGET or WARM_PREFIX_TARGET wants is requested; 0: at
        once.
    `leaves_trunk_place`: a place on card 0 is left free for the trunk ENI, which the control plane attaches.
    `is_provisioning_disabled`: nothing is requested of EC2, even if ADDs wait.
    `keeps_one_free`: with every target 0 one address stays free. Without, the pool has none before the first pod.
    `family`: the pool's address family. A pool of IPv6 needs one /80, and no target counts.
    `meaningless`: settings that are set although they have no effect there.
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
    leaves_trunk_place: bool = False
    is_provisioning_disabled: bool = False
    keeps_one_free: bool = True
    family: Family = IPV4
    meaningless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise failure(SettingsError, FailureCode.TARGET_NEGATIVE, name=name, value=getattr(self, name))
        if not 0 < self.release_hold_s < math.inf:
            raise failure(SettingsError, FailureCode.RELEASE_HOLD_NOT_POSITIVE, value=self.release_hold_s)
        if not 0 <= self.spare_eni_delay_s < math.inf:
            raise failure(SettingsError, FailureCode.SPARE_DELAY_NEGATIVE, value=self.spare_eni_delay_s)

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set or follows demand; they replace the other targets."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0 or self.warm_target_auto
