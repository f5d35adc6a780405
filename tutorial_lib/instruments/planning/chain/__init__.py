"""A chain of stages as numbers: what a plan costs, and the fastest that fits a budget."""
