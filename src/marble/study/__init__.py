"""Studies: settings × methods × seeds on one recipe, run side by side, told in one table."""

from marble.study.plan import Cell, Study, load_study
from marble.study.runner import Failure, run_studies, run_study
from marble.study.table import finished_runs, study_table, table_of
from marble.study.write import markdown, write_tables

__all__ = [
    "Cell",
    "Failure",
    "Study",
    "finished_runs",
    "load_study",
    "markdown",
    "run_studies",
    "run_study",
    "study_table",
    "table_of",
    "write_tables",
]
