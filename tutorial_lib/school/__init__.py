"""What runs the school: the command line, set-up, building notebooks, grading.

Nothing that learners import stands here, and nothing that they import uses it.
"""
