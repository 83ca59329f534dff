"""The network file, one JSON object: zones of custom networking (`subnets.py`), pools of pods (`pod_pools.py`), and addresses of pods
(`pinned_address.py`). Pure.

The file is mounted into the daemon's pod. So the daemon needs no call of the Kubernetes API, and no YAML parser (I12; docs/adr/0030,
docs/adr/0084).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.json_form import checked_fields, read_object
from ipamd.model.pinned_address import PinnedList, pinned_list_of
from ipamd.model.pod_pools import NO_POOLS, PodPools, pools_of
from ipamd.model.record import dataclass, field
from ipamd.model.subnets import CustomNetwork, zones_of
from ipamd.model.words import counted

FORM = {"zones": dict, "primaryEniCarriesPods": bool, "pools": dict, "addresses": dict}
"""Key of the file's object -> the type of its value."""


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """The parts of the file's content that are in force.

    `custom`: the zones of custom networking; None unless custom networking is on.
    `pools`: the pools of pods that the file names.
    `addresses`: the operator's list, pod -> address; empty unless the list is in force.
    """

    custom: CustomNetwork | None = None
    pools: PodPools = NO_POOLS
    addresses: PinnedList = field(default_factory=dict)


def parse(
    text: str,
    *,
    source: str,
    is_custom: bool = True,
    named: Mapping[str, str] = MappingProxyType({}),
    is_list_on: bool = False,
) -> NetworkFile:
    """Read the file's text.

    Args:
        source: the path of the file, for people.
        is_custom: whether custom networking is on. Then the file must have zones; otherwise its zones are checked and have no effect.
        named: pools that settings name -> the setting. The file must have these pools.
        is_list_on: whether the list of addresses is in force. Then the file must have the list; otherwise a list in the file is
            checked and has no effect.
    Raises: SettingsError whose details name every problem at once.
    """
    problems: list[str] = []
    try:
        document = read_object(text, problems)
    except (ValueError, RecursionError) as error:
        raise _wrong(source, [f"it is no JSON: {error}"]) from error
    in_force = {"zones": is_custom, "pools": bool(named), "addresses": is_list_on}
    needed = tuple(name for name, is_needed in in_force.items() if is_needed)
    fields = checked_fields(document, FORM, location="the file", needed=needed, problems=problems)
    custom = zones_of(fields, problems)
    entries = fields.get("pools", {})
    pools = pools_of(entries, problems)
    problems += [f"pools: {name} is missing, and {setting} names it" for name, setting in named.items() if name not in entries]
    addresses = pinned_list_of(fields.get("addresses", {}), problems)
    if problems:
        raise _wrong(source, problems)
    return NetworkFile(custom if is_custom else None, pools, addresses if is_list_on else {})


def _wrong(source: str, problems: list[str]) -> SettingsError:
    count = counted(len(problems), "problem")
    return failure(SettingsError, FailureCode.NETWORK_FILE_WRONG, path=source, count=count, problems="; ".join(problems))
