"""Read custom networking's file at the start of the daemon: `ipamd/model/subnets.py` says what is in it."""

from __future__ import annotations

from ipamd.model.errors import SettingsError
from ipamd.model.subnets import CustomNetwork, parse
from ipamd.settings import SubnetsConfig
from ipamd.settings.settings_file import SIZE_MAX, content_of


def load(config: SubnetsConfig) -> CustomNetwork | None:
    """Read the file if custom networking is on.

    Returns: None if it is off.

    Raises: SettingsError naming every problem; a node without its file would put pods into the wrong subnet.
    """
    if not config.custom_networking:
        return None
    path = config.network_file
    try:
        content = content_of(str(path))
        if len(content) > SIZE_MAX:  # what is cut may end within a character
            raise SettingsError(f"{path} is larger than {SIZE_MAX} bytes")
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG is true, and {path} cannot be read: {error}",
            details="mount the file there or set VPC_IPAMD_NETWORK_FILE; `ipamctl convert-eniconfig` makes it of ENIConfig objects",
        ) from error
    return parse(text, source=str(path))
