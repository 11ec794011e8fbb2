"""Before deployment: how predictable the traffic is, what speculation makes of it, and what that takes and costs."""

from outrider.plan.assess import Assessment, Group, assess
from outrider.plan.capacity import CapacityPlan, Costs, Deployment, plan, roofline_costs
from outrider.plan.traffic import Exchange, read_traffic

__all__ = [
    "Assessment",
    "CapacityPlan",
    "Costs",
    "Deployment",
    "Exchange",
    "Group",
    "assess",
    "plan",
    "read_traffic",
    "roofline_costs",
]
