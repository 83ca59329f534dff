"""Move a node from amazon-vpc-cni-k8s to vpc-ipamd and back.

All code that opens the files of amazon-vpc-cni-k8s, or speaks to its daemon or plugin, is in this package. The formats of the files
are in the modules of `ipamd/model/` whose names begin with `aws_node`. Only `ipamd/process/` imports this package.
"""
