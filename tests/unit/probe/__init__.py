"""The probe of EC2, without EC2."""
