"""How good a model is on several rewards at once, and how sure we are (numpy only at import)."""

from marble.evaluation.compare import compare_table
from marble.evaluation.drift import drift_statistics
from marble.evaluation.geneval_tags import geneval_record, tag_scores
from marble.evaluation.harmony import Harmony, conflicts, harmony
from marble.evaluation.intervals import Interval, gain_interval, mean_interval
from marble.evaluation.measures import (
    Joint,
    Wins,
    composite,
    joint_rates,
    relative_gains,
    wins,
    worst_gain,
)
from marble.evaluation.paper import paper_table, read_evaluations
from marble.evaluation.pareto import Hypervolume, hypervolume, pareto_front
from marble.evaluation.runs import RunRecord, read_jsonl, read_run, score_tables
from marble.evaluation.summary import summarise

__all__ = [
    "Harmony",
    "Hypervolume",
    "Interval",
    "Joint",
    "RunRecord",
    "Wins",
    "compare_table",
    "composite",
    "conflicts",
    "drift_statistics",
    "gain_interval",
    "geneval_record",
    "harmony",
    "hypervolume",
    "joint_rates",
    "mean_interval",
    "paper_table",
    "pareto_front",
    "read_evaluations",
    "read_jsonl",
    "read_run",
    "relative_gains",
    "score_tables",
    "summarise",
    "tag_scores",
    "wins",
    "worst_gain",
]
