"""The differences between the kinds of legs in the kernel: how a leg is created, recognised in a survey, repaired and deleted."""
