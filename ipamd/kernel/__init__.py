"""The kernel adapters: netlink packed by hand for sandboxes and for the node's own links, tables and rules; nftables by libnftables.

Nothing here forks. ADD uses two netlink sockets and three sends. Only the support bundle's dumps import pyroute2 (docs/adr/0004).
"""
