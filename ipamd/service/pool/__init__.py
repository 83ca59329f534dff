"""What we ask of EC2: ENIs and addresses, ahead of need."""
