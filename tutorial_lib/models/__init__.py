"""Small models to read: each module stands alone, as in `tutorial_lib.models.gpt`."""
