"""Before deployment: how predictable the traffic is, and what speculation would make of it."""

from outrider.plan.assess import Assessment, Group, assess
from outrider.plan.traffic import Exchange, read_traffic

__all__ = ["Assessment", "Exchange", "Group", "assess", "read_traffic"]
