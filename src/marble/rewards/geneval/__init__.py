"""GenEval: compositional correctness judged on a detector's objects."""

from marble.rewards.geneval.detectors import ColorClassifier, Detections, Detector
from marble.rewards.geneval.reward import GenEval
from marble.rewards.geneval.rules import Verdict, judge, relations

__all__ = ["ColorClassifier", "Detections", "Detector", "GenEval", "Verdict", "judge", "relations"]
