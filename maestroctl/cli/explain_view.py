"""`explain` for a person: what was decided, in which order, and from which numbers.

Terms of candidates are printed by the names that the records give them, so a policy that weighs
something new shows it without a change here. Lines fold to the width of the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from maestroctl.cli.render import status_text, time_text
from maestroctl.domain.units import format_bytes, format_seconds

_KINDS = {
    "order": "order",
    "choose_model": "model",
    "route": "node",
    "admit": "admission",
    "refuse": "refused",
    "residency": "room",
    "degrade": "room",
    "lifecycle": "engine",
}
"""Kind of a record -> what a person calls it."""
_CALLED = {True: "called", False: "not called", None: "not known"}
_LABEL = 11


def number(value: float) -> str:
    """Four digits at most; whole numbers as they are."""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def print_explanation(out: Console, document: Mapping[str, Any]) -> None:
    """The job, then stage by stage."""
    job = document["job"]
    out.print(_job_line(job))
    if job["reason"]:
        out.print(Text(job["reason"], style="dim"))
    _print_records(out, document["decisions"], job["submitted_at"])
    for stage in document["stages"]:
        out.print()
        _print_stage(out, stage)
    if not document["stages"]:
        out.print(Text("No stage of it has arrived yet.", style="dim"))


def _job_line(job: Mapping[str, Any]) -> Text:
    line = Text(f"{job['job_id']}  {job['workflow'] or 'request'}  ", style="bold")
    line.append_text(status_text(job["status"]))
    line.append(f"  {job['class']}", style="not bold")
    if job["deadline_s"] is not None:
        line.append(f", deadline {format_seconds(job['deadline_s'])}", style="not bold")
    if job["finished_at"] is not None:
        took = format_seconds(job["finished_at"] - job["submitted_at"])
        line.append(f", took {took}", style="not bold")
    return line


def _print_stage(out: Console, stage: Mapping[str, Any]) -> None:
    head = Text(stage["step"] or "request", style="bold")
    head.append(f"  {stage['stage_id']}  ", style="dim not bold")
    head.append_text(status_text(stage["outcome"] or stage["state"]))
    out.print(head)
    where = stage["model"] + (f" on {stage['node']}" if stage["node"] else "")
    tries = f", {stage['num_attempts']} attempts" if stage["num_attempts"] > 1 else ""
    role = f"role {stage['role']}, " if stage["role"] else ""
    _row(out, "stage", f"{role}{where}{tries}")
    arrived = stage.get("arrived_at")
    if arrived is not None:
        _row(out, "ready", time_text(arrived))
    if stage["reason"]:
        _row(out, "ended", stage["reason"])
    records = sorted([*stage["decisions"], *stage["engine_decisions"]], key=lambda r: r["at"])
    _print_records(out, records, arrived)
    _row(out, "predicted", _prediction(stage["prediction"]))
    _row(out, "seconds", _times(stage["times"]))


def _print_records(
    out: Console, records: Iterable[Mapping[str, Any]], began_at: float | None
) -> None:
    began = began_at
    for record in records:
        began = record["at"] if began is None else began
        label = _KINDS.get(record["kind"], record["kind"])
        text = Text(f"+{max(0.0, record['at'] - began):.3f} s  ", style="dim")
        if record["choice"]:
            text.append(f"{record['choice']}: ", style="not dim bold")
        text.append(record["reason"] or "no reason given", style="not dim not bold")
        _row(out, label, text)
        age_s = record.get("input_age_s") or 0.0
        if age_s >= 1.0:
            _below(out, Text(f"decided on a picture {format_seconds(age_s)} old", style="yellow"))
        for candidate in record.get("candidates") or ():
            show = format_bytes if record["kind"] == "degrade" else number
            _below(out, _candidate(candidate, record["choice"], show))
        rest = record.get("rejected_counts") or {}
        if rest:
            counts = ", ".join(f"{number} × {why}" for why, number in rest.items())
            _below(out, Text(f"others: {counts}", style="dim"))


def _candidate(
    candidate: Mapping[str, Any], choice: str, show: Callable[[float], str] = number
) -> Text:
    chosen = candidate["name"] in choice.split(" or ")
    line = Text("* " if chosen else "- ", style="green" if chosen else "dim")
    line.append(candidate["name"], style="bold" if chosen else "not dim")
    terms = ", ".join(f"{name} {show(value)}" for name, value in candidate["terms"].items())
    if candidate["score"] is not None:
        line.append(f"  {number(candidate['score'])}", style="not dim")
        if terms:
            line.append(f" from {terms}", style="not bold dim")
    elif terms:
        line.append(f"  {terms}", style="not bold dim")
    if candidate["rejected"]:
        line.append(f"  out: {candidate['rejected']}", style="yellow not bold")
    return line


def _prediction(prediction: Mapping[str, Any] | None) -> Text:
    if prediction is None:
        return Text("nothing to compare: no answer was counted", style="dim")
    q50, q90 = prediction["output_q50"], prediction["output_q90"]
    came = prediction["output_tokens"]
    text = Text(f"{number(q50)} tokens (q90 {number(q90)}, {prediction['source']})")
    text.append(f"; came {'at least ' if prediction['censored'] else ''}{came}")
    if came > q90:
        text.append(f", {number(came / q90) if q90 else 'far'} × the q90", style="yellow")
    text.append(f"; tool {prediction['p_tool']:.0%}, ")
    text.append(_CALLED[prediction["tool_called"]])
    return text


def _times(times: Mapping[str, float | None]) -> Text:
    parts = list(_time_parts(times))
    return Text(", ".join(parts)) if parts else Text("still under way", style="dim")


def _time_parts(times: Mapping[str, float | None]) -> Iterator[str]:
    whole = times.get("prefill_s") is None  # an answer in one piece: its parts were not seen
    words = {"queue_s": "queue", "wake_s": "wake or start", "prefill_s": "prefill"}
    words |= {"answer_s": "prefill and decode"} if whole else {"decode_s": "decode"}
    for key, word in words.items():
        value = times.get(key)
        if value is not None:
            yield f"{word} {format_seconds(value)}"


def _row(out: Console, label: str, text: str | Text) -> None:
    line = Text(f"{label:<{_LABEL}}", style="cyan")
    body = text if isinstance(text, Text) else Text(text)
    width = max(20, out.width - _LABEL - 2)
    folded = body.wrap(out, width)
    for index, part in enumerate(folded):
        head = line if index == 0 else Text(" " * _LABEL)
        out.print(Text("  ").append_text(head).append_text(part))


def _below(out: Console, text: Text) -> None:
    out.print(Padding(text, (0, 0, 0, _LABEL + 4)))
