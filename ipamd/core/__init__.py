"""What every room of use cases stands on: health, demand, deadlines, pauses. It knows no room, and no adapter."""
