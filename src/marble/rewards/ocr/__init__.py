"""OCR: the quoted text of the prompt, read in the picture."""

from marble.rewards.ocr.engines import Engine, Line
from marble.rewards.ocr.reward import OCR
from marble.rewards.ocr.text import edit_distance, match_score, normalise, quoted_text

__all__ = ["OCR", "Engine", "Line", "edit_distance", "match_score", "normalise", "quoted_text"]
