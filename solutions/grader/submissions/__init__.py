"""What was handed in: found, read with care, and matched with the exercises."""
