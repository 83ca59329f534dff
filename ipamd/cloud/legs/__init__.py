"""What is known of instance types for legs."""
