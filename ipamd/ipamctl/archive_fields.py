"""The fields of log lines and of the kernel's objects that a support archive keeps. A field that is not declared here is left out.

The list is declared and not derived from the source, so that a reworded sentence or a renamed variable does not change which data
leave a node. A new key of a log line must be added here (`tests/unit/ipamctl/test_archive_fields.py`).
"""

from __future__ import annotations

_LOG = """
action actions address addresses again_in_s age api at attachment barred branch cause chains changed check code commit connections
container container_id count datastore decode difference directory done drain_s eni enis error event exception excluded file
former freed former_rows from generation groups how ifname ignored in_s index intent is kept kind left leftover level limit limits
link listed lock logger loop message method mode ms name names needed netns new_path node noticed_s object of other_address
outcome parameter path peer placed plan pod policy read_in_s reason reasons refusal removed repaired request reserve result retire
retry_s rpcs sandbox socket source state step steps steps_ms subject subnet successor taken text thread took_s trace type until
verb versions veth wait_s what why wire witness work
"""

_KERNEL = """
accept_dad accept_local accept_ra accept_ra_defrtr accept_ra_pinfo accept_ra_rt_info_max_plen accept_ra_rtr_pref accept_redirects
accept_source_route action arp_accept arp_announce arp_ignore arp_notify arpfilter autoconf base_addr bootp_relay cepkts change
collisions cstamp csumerrors dad_transmits dev disable_ipv6 dma dst_len dummy ect0pkts ect1pkts family flags force_igmp_version
force_mld_version force_tllao forwarding fragcreates fragfails fragoks hop_limit hops ids ifa_preferred ifa_valid ifi_type ifindex
igmpv2_unsolicited_report_interval igmpv3_unsolicited_report_interval inaddrerrors inbcastoctets inbcastpkts indelivers index
indiscards inerrors inhdrerrors inmcastoctets inmcastpkts inmsgs innoroutes inoctets inpkts intoobigerrors intruncatedpkts
inunknownprotos irq log_martians mask max_addresses max_desync_factor max_reasm_len mc_forwarding medium_id mem_end mem_start mtu
multicast ndisc_notify ndm_confirmed ndm_refcnt ndm_type ndm_updated ndm_used noectpkts nopolicy noxfrm num oif optimistic_dad
outbcastoctets outbcastpkts outdiscards outerrors outforwdatagrams outmcastoctets outmcastpkts outmsgs outnoroutes outoctets outpkts
port prefixlen promote_secondaries proto proxy_arp proxy_arp_pvlan proxy_ndp reachable_time reasmfails reasmoks reasmreqds
reasmtimeout regen_max_retry retrans_time route_localnet router_probe_interval router_solicitation_delay router_solicitation_interval
router_solicitations rp_filter rta_clntref rta_error rta_expires rta_id rta_lastuse rta_ts rta_tsage rta_used rx_bytes rx_compressed
rx_crc_errors rx_dropped rx_errors rx_fifo_errors rx_frame_errors rx_length_errors rx_missed_errors rx_over_errors rx_packets scope
secure_redirects send_redirects shared_media src_len src_vmark state table tag temp_preferred_lft temp_valid_lft tos tstamp
tx_aborted_errors tx_bytes tx_carrier_errors tx_compressed tx_dropped tx_errors tx_fifo_errors tx_heartbeat_errors tx_packets
tx_window_errors type use_tempaddr vlan_flags
"""

LOG_FIELDS = frozenset(_LOG.split())
"""Keys of our log lines (`ipamd/logs.py`), and the steps of a request."""

KERNEL_FIELDS = frozenset(_KERNEL.split())
"""Fields that pyroute2 gives to links, addresses, rules, routes and neighbours in addition to their attributes, in lower case."""
