"""Does T1 help where delays are random? Best metric of Hogwild!-style training over the mean delay."""

from __future__ import annotations

from paper_figures.runs.sensitivity import draw, missing

__all__ = ["draw", "missing"]
