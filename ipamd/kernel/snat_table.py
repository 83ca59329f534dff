"""The table of ours in nftables that translates and marks: what it must be like for this node, and its comparison and repair."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ipamd.kernel import records, ruleset
from ipamd.kernel.nft import Nftables
from ipamd.kernel.node import former_settings
from ipamd.kernel.ruleset import OwnTable
from ipamd.model.cloud import InstanceIdentity
from ipamd.settings import NetworkConfig


class SnatTable:
    """Used under the lock of `KernelHostNetwork`."""

    def __init__(self, nft: Nftables, *, config: NetworkConfig, veth_names: Callable[[], Iterable[str]]) -> None:
        """`veth_names`: the host veths of recorded sandboxes; some may be named by an earlier prefix."""
        self._table = OwnTable(nft)
        self._config = config
        self._veth_names = veth_names
        self._former_names: set[str] = set()
        self._seen: tuple[str, ruleset.FormerSettings] | None = None

    def use(self, config: NetworkConfig) -> None:
        """Go by other settings from the next repair on."""
        self._config = config
        self._seen = None

    def forget(self) -> None:
        """Replace the table at the next repair."""
        self._table.forget()

    def difference(self, identity: InstanceIdentity, *, primary_link: str, rules: Collection[records.Rule]) -> str:
        """Say in one sentence how the table differs; "" if it does not. Raises: WiringError."""
        return self._table.difference(self._commands(identity, primary_link, self._former(rules)))

    def repair(self, identity: InstanceIdentity, *, primary_link: str, rules: Collection[records.Rule]) -> list[str]:
        """Replace the table if it differs; one sentence if that changed it. Raises: WiringError."""
        former = self._former(rules)
        self._seen = primary_link, former
        return self._table.repair(self._commands(identity, primary_link, former))

    def repair_again(self, identity: InstanceIdentity) -> list[str]:
        """The same by what the last repair saw of the host; nothing before the first one. Raises: WiringError."""
        return [] if self._seen is None else self._table.repair(self._commands(identity, *self._seen))

    def _former(self, rules: Collection[records.Rule]) -> ruleset.FormerSettings:
        """A former prefix is kept until the next start: else audit and CHECK would find a difference after its sandboxes' last DEL."""
        prefix = self._config.veth_prefix
        self._former_names.update(name for name in self._veth_names() if not name.startswith(prefix))
        return former_settings(rules, self._former_names, self._config)

    def _commands(self, identity: InstanceIdentity, primary_link: str, former: ruleset.FormerSettings) -> str:
        return ruleset.replace_table(
            self._config,
            vpc_cidrs=tuple(identity.vpc_cidrs),
            primary_address=identity.primary_address,
            primary_link=primary_link,
            former=former,
        )
