"""The report: scores, one page a submission, facts about the run."""

from tutorial_lib.school.grading.report.report_class import report_class
from tutorial_lib.school.grading.report.write_folder import check_folder, write_report

__all__ = ["check_folder", "report_class", "write_report"]
