"""Read custom networking's file at the start of the daemon: `ipamd/model/custom_network.py` says what is in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ipamd.config import SubnetsConfig
from ipamd.model.custom_network import CustomNetwork, parse
from ipamd.model.errors import SettingsError

SIZE_MAX = 1 << 20
"""Bytes. Ours: the size of a ConfigMap, which the file is mounted from."""

WITHOUT_EFFECT = ("ENI_CONFIG_LABEL_DEF", "ENI_CONFIG_ANNOTATION_DEF")
"""Settings of amazon-vpc-cni-k8s that choose an ENIConfig by what only the Kubernetes API knows of a node."""

log = logging.getLogger(__name__)


def load(config: SubnetsConfig, environ: Mapping[str, str] = os.environ) -> CustomNetwork | None:
    """Read the file if custom networking is on; settings that have no effect with it are named in the log (I15).

    Returns: None if it is off.

    Raises: SettingsError naming every problem; a node without its file would put pods into the wrong subnet.
    """
    if not config.custom_networking:
        return None
    for name in WITHOUT_EFFECT:
        if environ.get(name):
            log.warning("%s=%s has no effect: the file is by availability zone (docs/subnets.md)", name, environ[name])
    path = config.network_file
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG is true, and {path} cannot be read: {error}",
            details="mount the file there or set VPC_IPAMD_NETWORK_FILE; `ipamctl convert-eniconfig` makes it of ENIConfig objects",
        ) from error
    if len(content) > SIZE_MAX:
        raise SettingsError(f"{path} is larger than {SIZE_MAX} bytes")
    return parse(text, source=str(path))
