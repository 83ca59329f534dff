"""The in-memory state of a simulated VPC: what EC2 knows, and its faults; lab/ec2 and lab/imds serve it."""
