"""EC2 and instance metadata behind the ports `Ec2` and `Metadata` (I7, I12, I13).

`ipamd/process/adapters.py` builds the adapters in `ec2.py` and `metadata.py`. Importing this package imports no AWS library. The
daemon never imports botocore: the process of `child.py` does, because botocore takes much memory (docs/adr/0045).
"""
