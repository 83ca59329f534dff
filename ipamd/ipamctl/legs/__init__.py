"""What the command line writes about legs."""
