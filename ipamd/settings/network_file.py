"""Read the network file: at the start, for the check of a mounted file that changed, and for `ipamctl plan --network`.

All three use this module. So a changed file is judged in the same way as it will be judged by the next start.
"""

from __future__ import annotations

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.network_file import NetworkFile, parse
from ipamd.model.pod_pools import NO_POOLS
from ipamd.model.record import replace
from ipamd.settings.network_fields import SubnetsConfig
from ipamd.settings.settings_file import SIZE_MAX, content_of


def read_network_file(config: SubnetsConfig) -> NetworkFile:
    """Read the network file that the settings name. Raises: SettingsError with every problem."""
    path = config.network_file
    try:
        content = content_of(str(path))
    except OSError as error:
        raise failure(SettingsError, FailureCode.NETWORK_FILE_UNREADABLE, path=path, cause=error) from error
    return parse_network_file(content, config, source=str(path))


def parse_network_file(content: bytes, config: SubnetsConfig, *, source: str) -> NetworkFile:
    """Parse the content of a network file (`ipamd/model/network_file.py` describes it). Raises: SettingsError.

    Args:
        config: the settings that turn custom networking, pools of pods and the list of addresses on. If all three are off, the file is
            judged as a file of custom networking. Pools and addresses in the file whose setting is off are checked, but have no
            effect.
        source: the path of the file, for people.
    """
    if len(content) > SIZE_MAX:  # only a part of the file was read, and it may end within a character
        raise failure(SettingsError, FailureCode.FILE_TOO_LARGE, path=source, limit=SIZE_MAX)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise failure(SettingsError, FailureCode.NETWORK_FILE_UNREADABLE, path=source, cause=error) from error
    is_custom = config.custom_networking or not (config.has_pod_pools or config.pinned_list)
    network = parse(text, source=source, is_custom=is_custom, named=config.named_pools, is_list_on=config.pinned_list)
    # Pools that are off are dropped: they would take ENIs from the node's own pool, and no pod could have their addresses.
    if not config.has_pod_pools:
        return replace(network, pools=NO_POOLS)
    return network
