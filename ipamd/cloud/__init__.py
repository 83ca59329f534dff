"""EC2 and instance metadata behind the ports `Ec2` and `Metadata`; the only importer of botocore (I7, I12, I13).

`adapters.py` builds the adapters in `ec2.py` and `metadata.py`. Importing this package imports no AWS library: the
daemon must serve DEL before one is loaded.
"""
