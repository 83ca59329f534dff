"""The sources of the legs of new sandboxes, and the adoption of unrecorded sandboxes by the legs that the kernel shows.

A leg is one veth pair of a sandbox with an address of its own (`ipamd/model/legs/`). The first leg has the pod's address.
"""
