"""Control: measured cost, estimated acceptance, and the windows that they imply."""

from outrider.control.auto import AutoController, ControlCounts
from outrider.control.base import Candidate, Controller, Load
from outrider.control.cost import CostModel, calibrate

__all__ = ["AutoController", "Candidate", "ControlCounts", "Controller", "CostModel", "Load", "calibrate"]
