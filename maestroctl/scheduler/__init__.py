"""Every decision of maestroctl: two pure state machines and the policies they consult.

`CoordinatorCore` (order, model choice, route) and `NodeCore` (admission, residency, degradation,
life cycle) share no state: the coordinator decides on dated snapshots, the node admits or refuses.
Both are driven through ``handle(event, now_s) -> list[Effect]`` and nothing else; live and
simulated hosts carry out the effects. Standard library only: no clock, no I/O, no logger.
"""
