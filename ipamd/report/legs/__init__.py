"""What reports say of legs, and only of them."""
