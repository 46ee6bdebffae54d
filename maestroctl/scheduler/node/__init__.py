"""Node level: admission, residency, degradation and the life cycle of engines.

`scheduler.node_core` is the entry point; the modules here are its parts. `NodeState` (`state`)
holds the tables, every other module is functions over it, in this order of dependence::

    engine_lifecycle   the transition table
    engine_state       one engine, one stage: mutable, owned by NodeState
    footprint, books   what an engine holds; the memory ledger (Eq 4)
    journal, state     the stories; all tables, and the effects of the event in hand
    admission          may a stage enter an engine?
    stages             forward, refuse, abort, take out
    stage_events       offered, left, withdrawn, grown
    transitions        begin what changes memory
    transition_results finished, failed, exited
    placement          devices and KV limit of an activation
    residency          policy: who gives way first            (Maestro Algorithm 1)
    degradation        policy: how much must give way         (Maestro Algorithm 2)
    freed, room        what a give-way brings back; free memory of one pass
    victims            who may give way; `victim_view` how, and at what cost
    claims, orders     who waits for memory; who was told to give way
    claim_plans        victims for one claim; `overrun` for a lowered budget
    reconcile          what to begin next; `due` by time alone
    by_hand, epochs, shutdown, adoption    their events; requests by hand
    report, validation                     snapshot, invariants
"""
