"""`vpc-lab`, the command line of the lab, and the process behind it that holds a lab in the background."""
