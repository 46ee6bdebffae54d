"""The coordinator's host: carries out what `CoordinatorCore` asks for.

`host` owns the core; `stage_call` sends one stage to a node; `answer` watches what comes back;
`node_link` speaks to a node daemon; `local_node` keeps the daemon of this machine alive; `jobs`
and `views` answer the command line.
"""
