"""Node level: admission, residency, degradation and the life cycle of engines.

`scheduler.node_core` is the entry point; the modules here are its parts. `NodeState` (`state`)
holds the tables, every other module is functions over it, in this order of dependence::

    engine_lifecycle  the transition table
    engine_state      one engine, one stage: mutable, owned by NodeState
    books             the memory ledger (Eq 4)
    state             all tables, and the effects of the event in hand
    admission         may a stage enter an engine?
    stages            forward, hold, refuse, abort
    transitions       begin, finish and fail what changes memory
    placement         devices and KV limit of an activation; what victims hold
    residency         policy: who gives way first            (Maestro Algorithm 1)
    degradation       policy: how much must give way         (Maestro Algorithm 2)
    reconcile         waiters, room, victims: what to begin next
    by_hand, epochs, shutdown, adoption    their events
    report, validation                     snapshot, invariants
"""
