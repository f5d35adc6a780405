"""Chapter 11d: the tokens of a video."""

from solutions.answers import right, wrong

FILLINGS = {
    "video-tokens": {
        "counts_every_frame": wrong("24 tokens, not 72", "1 + (frames - 1) // 4", "frames"),
        "forgets_the_first_frame": wrong("8 tokens, not 0", "1 + (frames - 1) // 4", "frames // 4"),
        "forgets_the_patches": wrong(
            "8 tokens, not 32", *("(height // 16) * (width // 16)", "(height // 8) * (width // 8)")
        ),
        "halves_one_side_alone": wrong("8 tokens, not 16", "(width // 16)", "(width // 8)"),
        "rounds_up": right("1 + (frames - 1) // 4", "-(-frames // 4)"),
    },
}
