"""Discrete-event simulator: the same cores as live, driven by simulated hosts.

Theory of operation. `CoordinatorCore` and `NodeCore` do not know where time comes from. Here it
comes from a heap of events (`loop`), and messages between hosts take as long as the network says.
`world` puts the hosts together:

    coordinator_host   carries out what the coordinator's core decides; `runner` plays the jobs
    node_host          the same for a node's core; `relay` has its stages, `engine` each engine
    engine_model       how stages come along in an engine: `prefill`, then `token_clock`;
                       `iterations` says how long that takes, `device` who shares the card

Transitions of engines take the times of the profiles. What jobs there are is decided before the
first event (`workload`, from `traces` or from the fitted `generator`), so two policies that are
compared see the same jobs, lengths, arrivals and prediction errors.

Not here: decisions (`scheduler`), formulas over records (`telemetry.metrics`), experiments.
"""
