"""Settings: names and fields, parsing, amazon-vpc-cni-k8s's table, the mounted file, and what is in force."""

from ipamd.settings.current import Change as Change
from ipamd.settings.current import CurrentSettings as CurrentSettings
from ipamd.settings.current import Generation as Generation
from ipamd.settings.fields import CloudConfig as CloudConfig
from ipamd.settings.fields import DaemonConfig as DaemonConfig
from ipamd.settings.fields import NetworkConfig as NetworkConfig
from ipamd.settings.fields import PolicyConfig as PolicyConfig
from ipamd.settings.fields import PoolConfig as PoolConfig
from ipamd.settings.fields import RuntimeConfig as RuntimeConfig
from ipamd.settings.fields import Settings as Settings
from ipamd.settings.fields import SubnetsConfig as SubnetsConfig
from ipamd.settings.fields import TakeoverConfig as TakeoverConfig
from ipamd.settings.loading import ConfigLine as ConfigLine
from ipamd.settings.loading import contradictions as contradictions
from ipamd.settings.loading import describe as describe
from ipamd.settings.loading import load as load
from ipamd.settings.loading import load_what_is_right as load_what_is_right
from ipamd.settings.loading import without_meaning as without_meaning
