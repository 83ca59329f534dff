"""The plugins that the runtime runs beside ours: put those that come with us in place, and ask each what it speaks.

`loopback` is run by containerd for each sandbox before any conflist; what is chained behind ours stands in the conflist. A node of
EKS (Amazon Linux 2023) has none of them (awslabs/amazon-eks-ami issues 1610 and 1677). Decisions: docs/adr/0039.
"""
