"""Settings: fields, parsers, the table of amazon-vpc-cni-k8s's settings, the mounted file, and the values in force."""

from ipamd.settings.current import Change as Change
from ipamd.settings.current import CurrentSettings as CurrentSettings
from ipamd.settings.current import Generation as Generation
from ipamd.settings.fields import CloudConfig as CloudConfig
from ipamd.settings.fields import DaemonConfig as DaemonConfig
from ipamd.settings.fields import PolicyConfig as PolicyConfig
from ipamd.settings.fields import PoolConfig as PoolConfig
from ipamd.settings.fields import RuntimeConfig as RuntimeConfig
from ipamd.settings.fields import Settings as Settings
from ipamd.settings.loading import ConfigLine as ConfigLine
from ipamd.settings.loading import contradictions as contradictions
from ipamd.settings.loading import describe as describe
from ipamd.settings.loading import differences as differences
from ipamd.settings.loading import load as load
from ipamd.settings.loading import load_valid as load_valid
from ipamd.settings.loading import without_meaning as without_meaning
from ipamd.settings.network_fields import NetworkConfig as NetworkConfig
from ipamd.settings.network_fields import SubnetsConfig as SubnetsConfig
from ipamd.settings.takeover_fields import TakeoverConfig as TakeoverConfig
