"""Run folders → one self-contained HTML page. Knows files only; never imports torch."""

from marble.report.page import write
from marble.report.watching import watch

__all__ = ["watch", "write"]
