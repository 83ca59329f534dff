"""The program `vpc-ipamd-inventory`: reports once an hour what EC2 answers about the subnets of a cluster, and changes nothing."""
