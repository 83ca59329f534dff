"""Check on a real node the assumptions of the code about EC2 (docs/assumptions.md), with an ENI that the probe creates and tags.

Only `ipamctl probe aws` uses this package; the daemon does not import it. Start reading at `run.py`.
"""
