"""Control: measured cost, estimated acceptance, and the windows that they imply."""

from outrider.control.auto import AutoController, ControlCounts
from outrider.control.base import PLAIN, Candidate, Choice, Controller, Load
from outrider.control.breakeven import break_even, speedup
from outrider.control.cost import CostModel, calibrate, pass_seconds, recalled, save_cost

__all__ = [
    "PLAIN",
    "AutoController",
    "Candidate",
    "Choice",
    "ControlCounts",
    "Controller",
    "CostModel",
    "Load",
    "break_even",
    "calibrate",
    "pass_seconds",
    "recalled",
    "save_cost",
    "speedup",
]
