"""What stands around a student's code: the processes that it runs in, and what holds it there."""
