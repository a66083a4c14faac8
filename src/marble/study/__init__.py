"""Studies: methods × settings × seeds on one recipe, run side by side, told in one table."""

from marble.study.plan import Cell, Study, load_study
from marble.study.runner import run_study
from marble.study.table import study_table, write_tables

__all__ = ["Cell", "Study", "load_study", "run_study", "study_table", "write_tables"]
