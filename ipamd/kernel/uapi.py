"""Numbers of the kernel's user interface (UAPI) that the standard library lacks, under the header that defines them.

They are ABI: the kernel never changes them. They stand in one file so that a reviewer can compare them with the headers.
"""

from __future__ import annotations

from ipamd.model.eni import MAIN_TABLE

# linux/netlink.h
NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
SOL_NETLINK = 270  # linux/socket.h
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12
NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_CAPPED = 0x100  # in answers
NLM_F_ACK_TLVS = 0x200  # in answers
NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLMSG_OVERRUN = 4
NLMSGERR_ATTR_MSG = 1
NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

# linux/rtnetlink.h
RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_SETLINK = 19
RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22
RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26
RTM_NEWNEIGH = 28
RTM_GETNEIGH = 30
RTM_NEWRULE = 32
RTM_DELRULE = 33
RTM_GETRULE = 34
RTM_GETNSID = 90
QUESTIONS = frozenset({RTM_GETLINK, RTM_GETROUTE, RTM_GETNEIGH, RTM_GETNSID})
"""The kernel answers each with one message, or refuses it. Source: net/core/rtnetlink.c, rtnl_unicast."""
RTM_UNKNOWN = 0xFFF0
"""No such message: the kernel answers EOPNOTSUPP. Ours, for failpoints only."""

RTMGRP_LINK = 1
RTMGRP_IPV4_IFADDR = 0x10
RTMGRP_IPV4_ROUTE = 0x40
RTMGRP_IPV4_RULE = 0x80
RTNLGRP_IPV4_NETCONF = 24
RTM_NEWNETCONF = 80
NETCONFA_IFINDEX = 1  # linux/netconf.h
NETCONFA_IFINDEX_ALL = -1
NETNSA_NSID = 1  # linux/net_namespace.h
NETNSA_FD = 3
RTEXT_FILTER_SKIP_STATS = 1 << 3
RTA_DST = 1
RTA_SRC = 2
RTA_IIF = 3
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_TABLE = 15
RTA_MARK = 16
RTN_UNSPEC = 0
RTN_UNICAST = 1
RTN_LOCAL = 2
RTM_F_LOOKUP_TABLE = 0x1000
RTM_F_FIB_MATCH = 0x2000
RTPROT_STATIC = 4
RT_SCOPE_UNIVERSE = 0
RT_SCOPE_LINK = 253
RT_SCOPE_NOWHERE = 255
RT_TABLE_UNSPEC = 0
RT_TABLE_DEFAULT = 253
RT_TABLE_MAIN = MAIN_TABLE  # 254; the model numbers route tables too
RT_TABLE_LOCAL = 255

# linux/if_link.h, linux/if.h, linux/veth.h
IFLA_ADDRESS = 1
IFLA_IFNAME = 3
IFLA_MTU = 4
IFLA_LINK = 5
IFLA_MASTER = 10
IFLA_LINKINFO = 18
IFLA_IFALIAS = 20
IFLA_AF_SPEC = 26
IFLA_GROUP = 27
IFLA_NET_NS_FD = 28
IFLA_EXT_MASK = 29
IFLA_NUM_TX_QUEUES = 31
IFLA_NUM_RX_QUEUES = 32
IFLA_LINK_NETNSID = 37
IFLA_INFO_KIND = 1
IFLA_INFO_DATA = 2
VETH_INFO_PEER = 1
IFF_UP = 1
IFLA_INET_CONF = 1
IFLA_INET6_CONF = 2
IFLA_INET6_ADDR_GEN_MODE = 8
IN6_ADDR_GEN_MODE_NONE = 1

# linux/ip.h and linux/ipv6.h: numbers of the settings below /proc/sys/net/ipv4/conf and ipv6/conf
IPV4_DEVCONF_FORWARDING = 1
IPV4_DEVCONF_ACCEPT_REDIRECTS = 4
IPV4_DEVCONF_SECURE_REDIRECTS = 5
IPV4_DEVCONF_RP_FILTER = 8
IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE = 9
IPV6_DEVCONF_DISABLE_IPV6 = 26

# linux/if_addr.h
IFA_ADDRESS = 1
IFA_LOCAL = 2
IFA_FLAGS = 8
IFA_F_SECONDARY = 0x01
IFA_F_NOPREFIXROUTE = 0x200

# linux/neighbour.h
NDA_DST = 1
NDA_LLADDR = 2
NUD_NOARP = 0x40
NUD_PERMANENT = 0x80

# linux/fib_rules.h
FRA_DST = 1
FRA_SRC = 2
FRA_PRIORITY = 6
FRA_FWMARK = 10
FRA_TABLE = 15
FRA_FWMASK = 16
FR_ACT_TO_TBL = 1
FR_ACT_BLACKHOLE = 6

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
NETLINK_ADD_MEMBERSHIP = 1
NFNLGRP_NFTABLES = 7
NFNL_SUBSYS_NFTABLES = 10
NFT_MSG_NEWGEN = 15
NFTA_GEN_PROC_PID = 2
NFTA_GEN_PROC_NAME = 3
NFT_MSG_GETTABLE = NFNL_SUBSYS_NFTABLES << 8 | 1
NFT_MSG_GETCHAIN = NFNL_SUBSYS_NFTABLES << 8 | 4
NFT_MSG_GETRULE = NFNL_SUBSYS_NFTABLES << 8 | 7
NFT_MSG_GETSETELEM = NFNL_SUBSYS_NFTABLES << 8 | 13
NFT_MSG_GETGEN = NFNL_SUBSYS_NFTABLES << 8 | 16
NFT_MSG_GETOBJ = NFNL_SUBSYS_NFTABLES << 8 | 19
NFTA_TABLE_NAME = 1
NFTA_CHAIN_TABLE = 1
NFTA_CHAIN_NAME = 3
NFTA_RULE_TABLE = 1
NFTA_RULE_CHAIN = 2
NFTA_RULE_HANDLE = 3
NFTA_RULE_EXPRESSIONS = 4
NFTA_RULE_USERDATA = 7
NFTA_SET_ELEM_LIST_TABLE = 1
NFTA_SET_ELEM_LIST_SET = 2
NFTA_OBJ_TABLE = 1
NFTA_OBJ_NAME = 2
NFTA_OBJ_DATA = 4
NFTA_COUNTER_PACKETS = 2
NFTA_EXPR_NAME = 1
NFTA_EXPR_DATA = 2
NFTA_MATCH_NAME = 1
NFTA_MATCH_INFO = 3
NFTA_GEN_ID = 1

# linux/filter.h, linux/bpf_common.h, asm-generic/socket.h
SO_ATTACH_FILTER = 26
SO_RCVBUFFORCE = 33
BPF_LOAD_HALF_ABSOLUTE = 0x28  # BPF_LD | BPF_H | BPF_ABS
BPF_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
BPF_RETURN = 0x06  # BPF_RET | BPF_K

# linux/sched.h, linux/nsfs.h
CLONE_NEWNET = 0x40000000
NS_GET_NSTYPE = 0xB703  # _IO(0xb7, 3): which kind of namespace a descriptor is


# How the kernel adapters recognise a host veth: its kind, and the group of those that are to be deleted.
#
# Numbers that must stay compatible with amazon-vpc-cni-k8s are in `ipamd/model/kernel.py`.


DYING_GROUP = 0x1BA3D
"""Link group of host veths that wait for deletion; one kernel call deletes them all.

Ours: far from 0 (every other link) and from the small numbers that people use.
"""

VETH_KIND = "veth"
