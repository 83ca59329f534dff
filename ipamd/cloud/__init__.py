"""EC2 and instance metadata behind the ports `Ec2` and `Metadata`; the only importer of botocore (I7, I12, I13).

`ec2.py` and `metadata.py` are the adapters that `bootstrap.py` builds. Importing this package imports no AWS library: a
start that serves DEL must not wait for one.
"""
