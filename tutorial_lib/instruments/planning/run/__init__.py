"""Models and their stages: profile them, and run them by a plan."""
