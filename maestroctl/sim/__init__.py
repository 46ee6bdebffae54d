"""Discrete-event simulator: the same cores as live, driven by simulated hosts.

Theory of operation. `CoordinatorCore` and `NodeCore` do not know where time comes from. Here it
comes from a heap of events (`loop`); a node's engines are a token clock (`engine_model`), its
transitions take the times of the profiles, and messages between hosts take as long as the network
says (`coordinator_host`, `node_host`, put together by `world`). What jobs there are is decided
before the first event (`workload`, from `traces` or from the fitted `generator`), so two policies
that are compared see the same jobs, lengths, arrivals and prediction errors.

Not here: decisions (`scheduler`), formulas over records (`telemetry.metrics`), experiments.
"""
