"""All tables of ``fleet.toml``: one `Key` per thing a user may write.

See also: `config.fleet` (checks between keys and tables), `config.reference` (the page made from
this).
"""

from __future__ import annotations

from maestroctl.config.served_tables import CLUSTER, ENGINE, GROUP, MODEL, NODE
from maestroctl.config.service_tables import COORDINATOR, EVENT_LOG, POLICY, PREDICTOR, TOOLS

__all__ = [
    "ALL_TABLES",
    "CLUSTER",
    "COORDINATOR",
    "ENGINE",
    "EVENT_LOG",
    "GROUP",
    "LIST_TABLES",
    "MODEL",
    "NODE",
    "POLICY",
    "PREDICTOR",
    "SINGLE_TABLES",
    "TOOLS",
    "TOP_LEVEL",
]

SINGLE_TABLES = {
    "coordinator": COORDINATOR,
    "policy": POLICY,
    "tools": TOOLS,
    "event_log": EVENT_LOG,
    "predictor": PREDICTOR,
}
LIST_TABLES = {"cluster": CLUSTER, "node": NODE, "group": GROUP, "model": MODEL}
ALL_TABLES = (
    *(COORDINATOR, POLICY, TOOLS, EVENT_LOG, PREDICTOR),
    *(ENGINE, CLUSTER, NODE, GROUP, MODEL),
)
TOP_LEVEL = (*SINGLE_TABLES, "engine", *LIST_TABLES)
