"""The judge: nbval on the pristine lab, in processes that never run a student's line."""
