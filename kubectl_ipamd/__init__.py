"""`kubectl ipamd`: a kubectl plugin that looks at all nodes of a cluster that runs vpc-ipamd.

It is a program on the operator's machine, in a wheel of its own. It imports nothing of the daemon, because the daemon of a node may
be of another release, and nothing outside the standard library. docs/adr/0080-the-fleet-is-asked-through-kubectl.md has the reasons.
"""
