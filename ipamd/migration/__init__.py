"""Move a node from amazon-vpc-cni-k8s to vpc-ipamd and back.

All code that uses the files, the daemon or the plugin of amazon-vpc-cni-k8s is in this package. It can be removed as a whole, because
only `ipamd/process/` imports it.
"""
