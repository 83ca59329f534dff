"""The kernel adapters: sandbox wiring over netlink packed by hand, the node's own networking over pyroute2 and libnftables.

Nothing here forks. ADD uses two netlink sockets and three sends. pyroute2 is imported by `changes` only, at the first change
to the node itself (docs/adr/0004).
"""
