"""How coordinator and node daemon reach each other: a Unix socket now, the same over SSH later."""
