"""What EC2 has to confirm about legs."""
