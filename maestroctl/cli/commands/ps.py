"""``maestroctl ps``: what is where."""

from __future__ import annotations

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, UrlOption


def ps(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show every model on every node: state, memory, what runs. Wakes nothing."""
    from maestroctl.cli import render
    from maestroctl.cli.api import get_once

    document = get_once(url, "/api/ps")
    if as_json:
        terminal.json(document)
        return
    terminal.out.print(render.models_table(document["models"]))
    devices = [
        {"node": node["node"], "rtt_s": node.get("rtt_s"), **device}
        for node in document["nodes"]
        for device in node["devices"]
    ]
    if devices:
        terminal.out.print()
        terminal.out.print(render.devices_table(devices))
    for node in document["nodes"]:
        if not node["connected"]:
            terminal.err.print(f"node {node['node']}: not connected", style="yellow")
    for row in document["models"]:
        if row.get("failure"):
            terminal.err.print(f"{row['model']}: {row['failure']}", style="red")
