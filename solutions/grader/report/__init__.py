"""The report: scores, one page a submission, facts about the run."""
