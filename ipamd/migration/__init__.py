"""Move a node from amazon-vpc-cni-k8s to vpc-ipamd and back. Here is all code that knows the files, daemon and plugin of
amazon-vpc-cni-k8s. It can be removed as a whole, because only the composition (`ipamd/process/bootstrap.py`) imports it.
"""
