"""``maestroctl demo``: three small models that share room for one, two workflows, what it cost.

`plan` decides the fleet and its memory budget, `run` runs it on the same `Coordinator` that
`serve` uses, `engine_watch` and `cli.board` follow what happens, `screen` shows it, `report` sums
it up, and `family` sees to it that nothing is left behind.
"""
