"""Comparisons of legs with EC2: whether EC2 confirms the ENI that a leg uses.

A leg is one veth pair of a sandbox with an address of its own (`ipamd/model/legs/`). So far only legs with branch ENIs are compared.
"""
