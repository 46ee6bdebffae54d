"""Renders the measured sections as a Markdown page and the calibration plot as SVG. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Section = Mapping[str, Any]

_HEAD = """# Prediction

What the predictors do, measured on public agent traces. This page is written by
`maestroctl predictor report`; do not edit it. Folds are by task: no figure is about a task that
was trained on, but for those of online learning, whose section says so. Intervals are 95 %
bootstrap intervals over tasks. The papers' figures are on their own data and stand beside ours for
orientation only.
"""


def render_page(sections: Mapping[str, Section]) -> str:
    """The page; a section that was not measured is left out, all but the evaluation."""
    measured = sections["evaluation"]
    parts = [_HEAD, _length(measured), _tool(measured), _total(measured)]
    if "ablations" in sections:
        parts.append(_ablations(sections["ablations"]))
    parts.append(_per_app(measured))
    if "shippable" in sections:
        parts.append(_shippable(measured, sections["shippable"]))
    if "online" in sections:
        parts.append(_online(sections["online"]))
    if "encoders" in sections:
        parts.append(_encoders(sections["encoders"]))
    if measured.get("latency_ms"):
        parts.append(_latency(measured))
    if "routing" in sections:
        parts.append(_routing(sections["routing"]))
    parts.append(_LIMITS)
    return "\n".join(part.strip() + "\n" for part in parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(bounds: Sequence[float] | None, digits: int = 2) -> str:
    return "" if bounds is None else f" [{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"


def _length(measured: Section) -> str:
    ours, paper_form = measured["length"], measured["length"]["paper_form"]
    baselines, intervals = measured["baselines"], measured["intervals"]
    rows = [
        (
            "Maestro-Pred (ours)",
            _number(ours["mae"], 1) + _interval(intervals["length.mae"], 1),
            _number(ours["r2"]) + _interval(intervals["length.r2"]),
            "165.43",
            "0.7774",
        ),
        (
            "the same, paper's form (expm1 of the mean log)",
            _number(paper_form["mae"], 1),
            _number(paper_form["r2"]),
            "",
            "",
        ),
        *(
            (
                label,
                _number(baselines[name]["mae"], 1)
                + _interval(intervals.get(f"baselines.{name}.mae"), 1),
                _number(baselines[name]["r2"]),
                mae,
                r2,
            )
            for name, label, mae, r2 in (
                ("magnus", "Magnus", "204.74", "0.6721"),
                ("magnus_log", "Magnus, log target", "", ""),
                ("bert_mlp", "BERT-MLP", "239.33", "0.5620"),
                ("linear", "Linear", "496.86", "-0.3177"),
                ("median", "median per (app, role)", "", ""),
            )
        ),
    ]
    less, less_log = (1 - ours["mae"] / baselines[m]["mae"] for m in ("magnus", "magnus_log"))
    coverage = measured["coverage"]["q90"]
    return f"""## Output length (Maestro, Table VI)

{_table(("predictor", "MAE", "R²", "paper MAE", "paper R²"), rows)}

MAE is judged on the median head, R² on the mean head; R² of the log is
{_number(ours["r2_log"], 3)}. MAE is {less:.0%} under Magnus (paper: 19.2 %), and {less_log:.0%}
under the Magnus that is fitted on log lengths, as our median head is. The 0.9 quantile covers
{_number(coverage, 3)}{_interval(intervals["coverage.q90"], 3)} of {ours["rows"]:,} stages.
"""


def _tool(measured: Section) -> str:
    ours, mlp = measured["tool_intent"], measured["baselines"]["mlp_tool"]
    rows = [
        (label, *(_number(f[key], 4) for key in ("f1", "accuracy", "log_loss", "brier", "ece")))
        for label, f in (
            ("LightGBM + isotonic (ours)", ours),
            ("three-layer MLP", mlp),
            (
                "paper: Maestro",
                {"f1": 0.8999, "log_loss": 0.2437, "accuracy": None, "brier": None, "ece": None},
            ),
        )
    ]
    bounds = ", ".join(
        f"{label}{_interval(measured['intervals'].get(f'tool_intent.{key}'), 4)}"
        for key, label in (("f1", "F1"), ("log_loss", "log loss"), ("ece", "ECE"))
    )
    return f"""## Tool intent (Maestro, Table III)

{_table(("classifier", "F1", "accuracy", "log loss", "Brier", "ECE"), rows)}

Rows with tools only ({ours["rows"]:,}); intervals: {bounds}.

![calibration](prediction-calibration.svg)
"""


def _total(measured: Section) -> str:
    ours, intervals = measured["total"], measured["intervals"]
    rows = [
        (label, _number(f.get("kendall_tau"), 3), _number(f.get("kendall_tau_admission"), 3),
         _number(_distance(f.get("kendall_tau")), 3), paper)
        for label, f, paper in (
            ("LightGBM, whole row (default)", ours, ""),
            ("quantile forest, Chimera's features", ours.get("chimera", {}), "0.12-0.27"),
            ("prompt length", ours["prompt_length"], "0.54-0.70"),
            ("FCFS (no information)", {"kendall_tau": 0.0}, "0.50"),
        )
    ]  # fmt: skip
    head = ("predictor", "τ, all stages", "τ, at admission", "distance", "paper's distance")
    return f"""## Remaining tokens of a workflow (Chimera, Table 3)

{_table(head, rows)}

Distance is the share of inverted pairs, (1 − τ) / 2. Intervals of the default: τ over all stages
{_interval(intervals.get("total.kendall_tau"), 3).strip()}, at admission
{_interval(intervals.get("total.kendall_tau_admission"), 3).strip()}. Its MAE is
{_number(ours["mae"], 0)} tokens over {ours["rows"]:,} stages.
"""


def _distance(tau: float | None) -> float | None:
    return None if tau is None else (1 - tau) / 2


def _ablations(measured: Section) -> str:
    labels = {
        "full": "full",
        "no_tool_intent": "without tool intent (w/o C)",
        "no_embedding": "without embedding (w/o BERT)",
        "oracle_tool": "true tool flag instead of p_tool",
        "per_role": "one regressor per (application, role)",
    }
    paper = {"full": "0.7774", "no_tool_intent": "0.7722", "no_embedding": "0.7129"}
    rows = [
        (label, _number(measured[name]["mae"]) + _interval(measured[name]["mae_interval"]),
         _number(measured[name]["mae_with_tools"]),
         _number(measured[name]["r2"], 3), _number(measured[name]["r2_log"], 4),
         paper.get(name, ""))
        for name, label in labels.items()
    ]  # fmt: skip
    head = ("form", "MAE", "MAE, rows with tools", "R²", "R² of log", "paper R²")
    return f"""## What each ingredient is worth (Maestro, Table VII)

One held-out quarter of the tasks.

{_table(head, rows)}

**Where the papers' claims do not hold here.** {_worth(measured, "no_tool_intent", "p_tool")}
Where a role always or never calls tools, the role, the step and the job's own last lengths say
already what it would say. {_worth(measured, "no_embedding", "the text embedding")} What carries the
prediction is what earlier stages of the same job and role did. {_per_role(measured)}

**When p_tool helps.** Length depends on the tool flag where one role both calls tools and talks.
{_when_tools_matter(measured)}
"""


def _worth(measured: Section, without: str, name: str) -> str:
    """What an ingredient does to the figures, of the table alone."""
    full, bare = measured["full"], measured[without]
    moved = full["mae"] - bare["mae"]
    verdict = "lowers" if moved < 0 else "raises"
    return (
        f"Over all rows {name} {verdict} the MAE of the length by {abs(moved):.2f} tokens"
        f" ({abs(moved) / bare['mae']:.1%}) and moves R² by {_moved(full['r2'], bare['r2'])}."
    )


def _moved(after: float | None, before: float | None) -> str:
    return "-" if after is None or before is None else f"{after - before:+.3f}"


def _per_role(measured: Section) -> str:
    """The paper's form of phase two against one pooled regressor."""
    pooled, own = measured["full"]["mae"], measured["per_role"]["mae"]
    verdict = "lower" if own < pooled else "higher"
    return (
        "One regressor per (application, role), as the paper has it, where there are rows enough"
        f" has a MAE that is {abs(own - pooled):.2f} tokens {verdict} than that of the pooled one."
    )


def _when_tools_matter(measured: Section) -> str:
    """Applications where the true flag saves a tenth of the MAE, and how much p_tool gets of it."""
    without, learned, oracle = (
        measured[name]["per_app"] for name in ("no_tool_intent", "full", "oracle_tool")
    )
    matters = [app for app, value in without.items() if oracle[app] < 0.9 * value]
    rows = [
        (
            app,
            _number(without[app], 1),
            *(f"{1 - f[app] / without[app]:.0%}" for f in (oracle, learned)),
        )
        for app in sorted(matters, key=lambda app: oracle[app] / without[app])
    ]
    if not rows:
        return "In no application here does even the true flag save a tenth of the MAE."
    head = ("application", "MAE without p_tool", "saved by the true flag", "saved by p_tool")
    return f"""The true flag would save a tenth of the MAE or more in these:

{_table(head, rows)}"""


def _per_app(measured: Section) -> str:
    rows = []
    for app, f in measured["per_app"].items():
        rows.append(
            (
                app,
                str(f["length"]["rows"]),
                _number(f["length"]["mae"], 1),
                _number(f["length"]["r2"]),
                _number(f["length"]["r2_log"]),
                _number(f["tool_intent"]["log_loss"], 3),
                _number(f["total"]["kendall_tau"]),
                _number(f["total"]["kendall_tau_admission"]),
                _number(f["coverage"]["q90"], 3),
            )
        )
    head = ("application", "stages", "MAE", "R²", "R² log", "tool log loss", "τ", "τ adm.", "q90")
    return f"## Per application\n\n{_table(head, rows)}\n"


def _shippable(measured: Section, shippable: Section) -> str:
    rows, pooled = [], [0.0, 0.0, 0]
    for app, f in shippable["per_app"].items():
        whole = measured["per_app"].get(app)
        if whole is None or not f["length"]["rows"]:
            continue
        ours, theirs, size = f["length"]["mae"], whole["length"]["mae"], f["length"]["rows"]
        pooled = [pooled[0] + ours * size, pooled[1] + theirs * size, pooled[2] + size]
        rows.append((app, _number(ours, 1), _number(theirs, 1)))
    ratio = pooled[0] / pooled[1] if pooled[1] else 1.0
    return f"""## The artifact that ships

Nothing that ships is trained on `stages_mast_chatdev`. On the other applications its MAE is
{ratio:.3f} times that of a model trained on everything.

{_table(("application", "MAE, shippable sources", "MAE, all sources"), rows)}
"""


def _online(measured: Section) -> str:
    curves: Mapping[str, Sequence[Section]] = measured["learning_curve"]
    points = [(app, point) for app, own in curves.items() for point in own]
    rows = [_online_row(app, point) for app, point in points if point["jobs"] in (0, 50, 200)]
    head = (
        "application", "after jobs", "stages", "base alone", "online", "trained on it", "ratio",
        "first runs", "online", "trained on it", "ratio", "q90", "τ",
    )  # fmt: skip
    late = [point for _, point in points if point["jobs"] == 30]
    first = [point["first_runs"] for point in late]
    return f"""## An application nobody has seen

Each application is replayed in order against a base that saw neither it nor any other application
of its source. Figures are over all stages that ran after so many jobs. As on a fleet, the running
figures and the refits have seen earlier runs of the same task, while the model trained on the
application is held out by task. The columns from "first runs" to the second ratio (stages, then
errors) are over the first run of each task alone, which no earlier run gives away.

{_table(head, rows)}

From the 30th job on the 0.9 quantile covers {_pooled_coverage(late)}, pooled; over first runs
alone {_pooled_coverage(first)}.
"""


def _online_row(app: str, point: Section) -> tuple[str, ...]:
    first = point["first_runs"]
    return (
        app,
        str(point["jobs"]),
        str(point["stages"]),
        _number(point["mae_without_learning"], 1),
        *_against_trained(point),
        str(first["stages"]),
        *_against_trained(first),
        _number(point["coverage"], 3),
        _number(point["kendall_tau"]),
    )


def _against_trained(figures: Section) -> tuple[str, str, str]:
    """MAE online, MAE of the model trained on the application, their ratio."""
    mae, own = figures["mae"], figures["mae_trained_on_it"]
    ratio = mae / own if mae is not None and own else None
    return _number(mae, 1), _number(own, 1), _number(ratio)


def _pooled_coverage(points: Sequence[Section]) -> str:
    stages = sum(point["stages"] for point in points)
    inside = sum(point["coverage"] * point["stages"] for point in points if point["stages"])
    return f"{_number(inside / stages if stages else None, 3)} of {stages:,} stages"


def _encoders(measured: Mapping[str, Section]) -> str:
    rows = [
        (name, _number(f["mae"]), _number(f["r2_log"], 4), _number(f["log_loss"], 4),
         _number(f["tau"], 3), _number(f["ms_median"], 2), _number(f["ms_p99"], 1))
        for name, f in measured.items() if "missing" not in f
    ]  # fmt: skip
    missing = [f"`{name}` was not measured: {f['missing']}." for name, f in measured.items()
               if "missing" in f]  # fmt: skip
    head = ("encoder", "MAE", "R² of log", "tool log loss", "τ", "ms, median", "ms, p99")
    return f"""## Text encoders: accuracy per millisecond

An eighth of the tasks, cross-validated; milliseconds per stage with the window cache, one thread.

{_table(head, rows)}

{_why_sketch(measured)} `minilm` stays selectable (`train --encoder minilm`). {" ".join(missing)}
"""


def _why_sketch(measured: Mapping[str, Section]) -> str:
    """Where the default stands in the table, said from the table."""
    told = {name: f for name, f in measured.items() if "missing" not in f}
    if "sketch" not in told:
        return "`sketch` is the default."
    best = {
        label: _best(told, key, sign)
        for key, label, sign in (
            ("mae", "MAE", 1), ("r2_log", "R² of the log", -1), ("log_loss", "tool log loss", 1),
            ("tau", "τ", -1),
        )
    }  # fmt: skip
    leads = [label for label, names in best.items() if "sketch" in names]
    others = [f"{label} (`{names[0]}`)" for label, names in best.items()
              if names and "sketch" not in names]  # fmt: skip
    ahead = f"it is the best here in {', '.join(leads)}" if leads else "it is the best in none here"
    behind = f", and not in {', '.join(others)}" if others else ""
    return f"`sketch` is the default: it needs numpy alone, and {ahead}{behind}."


def _best(told: Mapping[str, Section], key: str, sign: int) -> list[str]:
    values = {name: sign * f[key] for name, f in told.items() if f[key] is not None}
    return [name for name, value in values.items() if value == min(values.values())]


def _latency(measured: Section) -> str:
    f = measured["latency_ms"]
    return f"""## Latency

Through the predictor process, its socket and the calibration included, both on one core, jobs drawn
from all traces and replayed in order with three candidates:
median {_number(f["median"])} ms, 99th percentile {_number(f["p99"])} ms (Maestro: median 11.24 ms).
"""


def _routing(measured: Section) -> str:
    models = measured["per_model"].values()
    areas = [m["auc"] for m in models if m["auc"] is not None]
    better = sum(area > 0.5 for area in areas)
    brier = sum(m["brier"] < m["brier_base_rate"] for m in models)
    most = max((m["brier"] - m["brier_base_rate"] for m in models), default=0.0)
    return f"""## Confidence router

Held-out fifth of the questions, {len(measured["per_model"])} models: mean AUC
{_number(measured["mean_auc"], 3)}, above 0.5 for {better} of {len(areas)}; Brier score below that
of the model's base rate for {brier} of {len(measured["per_model"])}, above it by {most:.4f} at
most. A head is drawn to the base rate as far as its out-of-fold gain is noise. (Chimera: mean
average precision 0.631 with ModernBERT-large on two benchmarks.)
"""


_LIMITS = """## Limits

- Lengths of a few applications are lower bounds or were counted with another vocabulary; the
  traces' own notes say which.
- A job's history is what carries the prediction, so a plain request of one stage is predicted
  worse than these tables say.
- Text is cut to the last 2,000 characters of the prompt and the first 1,000 of the system prompt,
  since that is what the traces hold.
"""


def render_calibration_svg(bins: Sequence[Mapping[str, float]]) -> str:
    """Said against seen, the size of a dot growing with its rows."""
    size, pad = 320, 40
    most = max((b["rows"] for b in bins), default=1.0)

    def place(value: float, *, up: bool) -> float:
        return size - pad - value * (size - 2 * pad) if up else pad + value * (size - 2 * pad)

    dots = "\n".join(
        f'<circle cx="{place(b["said"], up=False):.1f}" cy="{place(b["seen"], up=True):.1f}"'
        f' r="{2 + 6 * (b["rows"] / most) ** 0.5:.1f}" fill="#2563eb" fill-opacity="0.7"/>'
        for b in bins
    )
    low, high = place(0, up=False), place(1, up=False)
    bottom, top = place(0, up=True), place(1, up=True)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}"
 font-family="sans-serif" font-size="11">
<rect width="{size}" height="{size}" fill="white"/>
<rect x="{low}" y="{top}" width="{high - low}" height="{bottom - top}" fill="none" stroke="#999"/>
<line x1="{low}" y1="{bottom}" x2="{high}" y2="{top}" stroke="#999" stroke-dasharray="4 3"/>
{dots}
<text x="{size / 2}" y="{size - 10}" text-anchor="middle">predicted chance of a tool call</text>
<text x="14" y="{size / 2}" text-anchor="middle"
 transform="rotate(-90 14 {size / 2})">observed share</text>
</svg>
"""
