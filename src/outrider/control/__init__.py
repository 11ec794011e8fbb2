"""Control: how far each request speculates."""

from outrider.control.base import Candidate, Controller
from outrider.control.fixed import FixedWindow

__all__ = ["Candidate", "Controller", "FixedWindow"]
