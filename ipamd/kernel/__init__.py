"""The kernel adapters: sandbox wiring and the node's own networking, over netlink packed by hand and libnftables.

Nothing here forks, and nothing here imports pyroute2 (docs/adr/0004): the ADD path is two netlink sockets and three sends.
"""
