"""The program `vpc-ipamd-inventory`: reports the subnets of a cluster by EC2's answers, once an hour, and changes nothing."""
