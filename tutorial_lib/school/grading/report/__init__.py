"""What the instructor and the students get: scores, one page a submission, facts about the run."""

from tutorial_lib.school.grading.report.place import check_place, write_report

__all__ = ["check_place", "write_report"]
