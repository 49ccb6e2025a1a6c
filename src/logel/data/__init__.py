"""What was observed: histories, how they are stored, and other people's data."""
