"""The state of a simulated VPC, in memory: the objects of EC2, and the faults. lab/ec2 and lab/imds serve it by HTTP."""
