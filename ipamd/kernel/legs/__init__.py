"""What is particular to each kind of leg in the kernel: how it is created, recognised in a survey, repaired and deleted."""
