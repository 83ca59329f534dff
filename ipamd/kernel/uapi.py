"""Numbers of the kernel's user interface (UAPI) that the standard library lacks, under the header that defines them.

They are ABI: the kernel never changes them. They stand in one file so that a reviewer can compare them with the headers.
"""

from __future__ import annotations

from typing import Final

from ipamd.model.eni import MAIN_TABLE

# linux/netlink.h
NETLINK_ROUTE: Final = 0
NETLINK_NETFILTER: Final = 12
SOL_NETLINK: Final = 270  # linux/socket.h
NETLINK_CAP_ACK: Final = 10
NETLINK_EXT_ACK: Final = 11
NETLINK_GET_STRICT_CHK: Final = 12
NLM_F_REQUEST: Final = 0x01
NLM_F_ACK: Final = 0x04
NLM_F_DUMP_INTR: Final = 0x10
NLM_F_DUMP: Final = 0x300
NLM_F_REPLACE: Final = 0x100
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
NLM_F_CAPPED: Final = 0x100  # in answers
NLM_F_ACK_TLVS: Final = 0x200  # in answers
NLMSG_NOOP: Final = 1
NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
NLMSG_OVERRUN: Final = 4
NLMSGERR_ATTR_MSG: Final = 1
NLA_F_NESTED: Final = 0x8000
NLA_TYPE_MASK: Final = 0x3FFF

# linux/rtnetlink.h
RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
RTM_SETLINK: Final = 19
RTM_NEWADDR: Final = 20
RTM_DELADDR: Final = 21
RTM_GETADDR: Final = 22
RTM_NEWROUTE: Final = 24
RTM_DELROUTE: Final = 25
RTM_GETROUTE: Final = 26
RTM_NEWNEIGH: Final = 28
RTM_GETNEIGH: Final = 30
RTM_NEWRULE: Final = 32
RTM_DELRULE: Final = 33
RTM_GETRULE: Final = 34
RTM_UNKNOWN: Final = 0xFFF0
"""No such message: the kernel answers EOPNOTSUPP. Ours, for failpoints only."""

RTMGRP_LINK: Final = 1
RTMGRP_IPV4_IFADDR: Final = 0x10
RTMGRP_IPV4_ROUTE: Final = 0x40
RTMGRP_IPV4_RULE: Final = 0x80
RTNLGRP_IPV4_NETCONF: Final = 24
RTM_NEWNETCONF: Final = 80
NETCONFA_IFINDEX: Final = 1  # linux/netconf.h
NETCONFA_IFINDEX_ALL: Final = -1
RTEXT_FILTER_SKIP_STATS: Final = 1 << 3
RTA_DST: Final = 1
RTA_OIF: Final = 4
RTA_GATEWAY: Final = 5
RTA_PRIORITY: Final = 6
RTA_TABLE: Final = 15
RTN_UNSPEC: Final = 0
RTN_UNICAST: Final = 1
RTN_LOCAL: Final = 2
RTM_F_FIB_MATCH: Final = 0x2000
RTPROT_STATIC: Final = 4
RT_SCOPE_UNIVERSE: Final = 0
RT_SCOPE_LINK: Final = 253
RT_SCOPE_NOWHERE: Final = 255
RT_TABLE_UNSPEC: Final = 0
RT_TABLE_DEFAULT: Final = 253
RT_TABLE_MAIN: Final = MAIN_TABLE  # 254; the model numbers route tables too
RT_TABLE_LOCAL: Final = 255

# linux/if_link.h, linux/if.h, linux/veth.h
IFLA_ADDRESS: Final = 1
IFLA_IFNAME: Final = 3
IFLA_MTU: Final = 4
IFLA_LINK: Final = 5
IFLA_LINKINFO: Final = 18
IFLA_IFALIAS: Final = 20
IFLA_AF_SPEC: Final = 26
IFLA_GROUP: Final = 27
IFLA_NET_NS_FD: Final = 28
IFLA_EXT_MASK: Final = 29
IFLA_NUM_TX_QUEUES: Final = 31
IFLA_NUM_RX_QUEUES: Final = 32
IFLA_INFO_KIND: Final = 1
IFLA_INFO_DATA: Final = 2
VETH_INFO_PEER: Final = 1
IFF_UP: Final = 1
IFLA_INET_CONF: Final = 1
IFLA_INET6_CONF: Final = 2
IFLA_INET6_ADDR_GEN_MODE: Final = 8
IN6_ADDR_GEN_MODE_NONE: Final = 1

# linux/ip.h and linux/ipv6.h: numbers of the settings below /proc/sys/net/ipv4/conf and ipv6/conf
IPV4_DEVCONF_FORWARDING: Final = 1
IPV4_DEVCONF_ACCEPT_REDIRECTS: Final = 4
IPV4_DEVCONF_SECURE_REDIRECTS: Final = 5
IPV4_DEVCONF_RP_FILTER: Final = 8
IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE: Final = 9
IPV6_DEVCONF_DISABLE_IPV6: Final = 26

# linux/if_addr.h
IFA_ADDRESS: Final = 1
IFA_LOCAL: Final = 2
IFA_FLAGS: Final = 8
IFA_F_SECONDARY: Final = 0x01
IFA_F_NOPREFIXROUTE: Final = 0x200

# linux/neighbour.h
NDA_DST: Final = 1
NDA_LLADDR: Final = 2
NUD_PERMANENT: Final = 0x80

# linux/fib_rules.h
FRA_DST: Final = 1
FRA_SRC: Final = 2
FRA_PRIORITY: Final = 6
FRA_FWMARK: Final = 10
FRA_TABLE: Final = 15
FRA_FWMASK: Final = 16
FR_ACT_TO_TBL: Final = 1

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
NETLINK_ADD_MEMBERSHIP: Final = 1
NFNLGRP_NFTABLES: Final = 7
NFNL_SUBSYS_NFTABLES: Final = 10
NFT_MSG_NEWGEN: Final = 15
NFTA_GEN_PROC_PID: Final = 2
NFTA_GEN_PROC_NAME: Final = 3
NFT_MSG_GETTABLE: Final = NFNL_SUBSYS_NFTABLES << 8 | 1
NFT_MSG_GETCHAIN: Final = NFNL_SUBSYS_NFTABLES << 8 | 4
NFT_MSG_GETRULE: Final = NFNL_SUBSYS_NFTABLES << 8 | 7
NFT_MSG_GETGEN: Final = NFNL_SUBSYS_NFTABLES << 8 | 16
NFTA_TABLE_NAME: Final = 1
NFTA_CHAIN_TABLE: Final = 1
NFTA_CHAIN_NAME: Final = 3
NFTA_RULE_TABLE: Final = 1
NFTA_RULE_CHAIN: Final = 2
NFTA_RULE_HANDLE: Final = 3
NFTA_RULE_EXPRESSIONS: Final = 4
NFTA_RULE_USERDATA: Final = 7
NFTA_EXPR_NAME: Final = 1
NFTA_EXPR_DATA: Final = 2
NFTA_MATCH_NAME: Final = 1
NFTA_MATCH_INFO: Final = 3
NFTA_GEN_ID: Final = 1

# linux/filter.h, linux/bpf_common.h, asm-generic/socket.h
SO_ATTACH_FILTER: Final = 26
SO_RCVBUFFORCE: Final = 33
BPF_LOAD_HALF_ABSOLUTE: Final = 0x28  # BPF_LD | BPF_H | BPF_ABS
BPF_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
BPF_RETURN: Final = 0x06  # BPF_RET | BPF_K

# linux/sched.h, linux/nsfs.h
CLONE_NEWNET: Final = 0x40000000
NS_GET_NSTYPE: Final = 0xB703  # _IO(0xb7, 3): which kind of namespace a descriptor is


# How the kernel adapters recognise a host veth: its kind, and the group of those that are to be deleted.
#
# Numbers that must stay compatible with amazon-vpc-cni-k8s are in `ipamd/model/kernel.py`.


DYING_GROUP: Final = 0x1BA3D
"""Link group of host veths that wait for deletion; one kernel call deletes them all.

Ours: far from 0 (every other link) and from the small numbers that people use.
"""

VETH_KIND: Final = "veth"
