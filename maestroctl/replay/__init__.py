"""Runs recorded events through today's decision code and compares what it asks for.

Theory of operation. An event log (`telemetry.recorder`) has the start values of one core and every
(event, time) pair it was handed, with the effects that came of it. `core_of_log` builds a fresh
core from the start values, `run` hands it the same pairs, `compare` holds the effects against those
recorded. Logs of live hosts and of the simulator are the same here, since both run the same cores.

After the first event that is decided otherwise the recorded future belongs to another past, so a
replay stops there. What is *done* (effects) and how it is *explained* (decision records) are told
apart: `explanations=False` lets a change of wording pass.
"""
