"""The in-memory state of a simulated VPC: what EC2 knows; the HTTP faces are in lab/ec2 and lab/imds."""
