"""Prometheus metrics of a coordinator; every name is defined in ``docs/metrics.md``.

Covers what the coordinator host reports (`Telemetry`'s methods, each a few microseconds) and what
can be read when somebody asks (fleet snapshot, load, store). Not here: the formulas (`metrics`),
engines' own metrics, which stay theirs.

Labels are service class, model, outcome, node and the like: words of the fleet file or of an enum,
so their number is bounded. Never a job, a stage, a key, a prompt or anything else a caller makes
up. One registry per `Telemetry`, nothing process-global. Methods are for one thread (the loop).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from maestroctl import __version__
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.telemetry import metrics
from maestroctl.telemetry.fleet_families import fleet_families
from maestroctl.telemetry.metrics import Job, StageAttempt
from maestroctl.telemetry.series import CounterSeries, HistogramSeries, counters_of

_WAIT_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_PREDICT_BOUNDS_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1)
_ACTIVATION_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

_MAX_WORDS = 1000
"""Distinct values of one label that are not an enum's; the fleet file bounds them far below."""
_OTHER = "other"


class StoreGauge(Protocol):
    """What is read of the store's journal."""

    @property
    def lag_s(self) -> float: ...
    @property
    def pending(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def refused(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Load:
    """What waits now.

    Attributes:
        queued: stages in the coordinator's queue, per service class.
        in_flight: stages at a node.
        stale_events: results and timers that the core has ignored so far.
        kept_slots: of each model and node that keeps slots for interactive stages, how many.
    """

    queued: Mapping[str, int] = field(default_factory=dict)
    in_flight: int = 0
    stale_events: int = 0
    kept_slots: Mapping[tuple[ModelName, NodeName], int] = field(default_factory=dict)


class Telemetry:
    """Counts what happens; `render` tells Prometheus.

    Args:
        store: the store's journal; None = no store metrics.
        load: called by `render`; may be set later.
    """

    def __init__(
        self, store: StoreGauge | None = None, *, load: Callable[[], Load] | None = None
    ) -> None:
        self.load = load
        self._store = store
        self._snapshots: Sequence[NodeSnapshot] = ()
        self._words: dict[str, str] = {}
        """Words already seen as a label of the host's choosing; see `_MAX_WORDS`."""
        self._make_series()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def _make_series(self) -> None:
        by_model = ("class", "model")
        self._requests = CounterSeries(
            "maestroctl_requests", "Stages that ended.", (*by_model, "outcome")
        )
        self._prompt_tokens = CounterSeries(
            "maestroctl_prompt_tokens", "Prompt tokens, as engines counted them.", by_model
        )
        self._cached_tokens = CounterSeries(
            "maestroctl_cached_tokens", "Prompt tokens served from a prefix cache.", by_model
        )
        self._output_tokens = CounterSeries(
            "maestroctl_output_tokens", "Output tokens, as engines counted them.", by_model
        )
        self._ttft = HistogramSeries(
            "maestroctl_ttft_seconds", "Arrival to first byte.", by_model, _WAIT_BOUNDS_S
        )
        self._tpot = HistogramSeries(
            "maestroctl_tpot_seconds",
            "Seconds per token after the first.",
            by_model,
            _TOKEN_BOUNDS_S,
        )
        self._queue_wait = HistogramSeries(
            "maestroctl_queue_wait_seconds", "Arrival to dispatch.", by_model, _WAIT_BOUNDS_S
        )
        self._activation = HistogramSeries(
            "maestroctl_activation_seconds",
            "What a stage waited for a wake or a start.",
            ("model", "kind"),
            _ACTIVATION_BOUNDS_S,
        )
        self._jobs = CounterSeries("maestroctl_jobs", "Jobs that ended.", ("class", "status"))
        self._deadlines = CounterSeries(
            "maestroctl_job_deadlines", "Ended jobs that had a deadline.", ("class", "met")
        )
        self._decisions = CounterSeries("maestroctl_decisions", "Decision records.", ("kind",))
        self._predictions = CounterSeries(
            "maestroctl_predictions", "Predictions used, by where they came from.", ("source",)
        )
        self._fallbacks = CounterSeries(
            "maestroctl_fallbacks", "Times something else than planned was used.", ("what",)
        )
        self._predict = HistogramSeries(
            "maestroctl_predict_seconds",
            "What asking the learned models took, answered or not.",
            ("stage",),
            _PREDICT_BOUNDS_S,
        )

    # --- what the host reports ------------------------------------------------------------------

    def stage_ended(self, attempt: StageAttempt) -> None:
        """A stage is over: call it once per stage, with its last attempt."""
        model = self._word(attempt.model)
        outcome = attempt.outcome
        service_class = str(attempt.service_class)
        key = (service_class, model)
        self._requests.add((service_class, model, outcome._value_ if outcome else ""))
        if (wait := metrics.queue_wait_s(attempt)) is not None:
            self._queue_wait.observe(key, wait)
        if (ttft := metrics.ttft_s(attempt)) is not None:
            self._ttft.observe(key, ttft)
            if (tpot := metrics.tpot_s(attempt)) is not None:
                self._tpot.observe(key, tpot)
        if attempt.activation:
            self._activation.observe((model, self._word(attempt.activation)), attempt.activation_s)
        if attempt.prompt_tokens:
            self._prompt_tokens.add(key, attempt.prompt_tokens)
        if attempt.cached_tokens:
            self._cached_tokens.add(key, attempt.cached_tokens)
        if attempt.output_tokens:
            self._output_tokens.add(key, attempt.output_tokens)

    def job_ended(self, job: Job) -> None:
        """A job is over; its deadline counts as kept or missed."""
        service_class = str(job.service_class)
        self._jobs.add((service_class, job.status.value))
        met = metrics.met_deadline(job, job.finished_at or 0.0)
        if met is not None:
            self._deadlines.add((service_class, "true" if met else "false"))

    def decision(self, kind: str) -> None:
        """A core made a decision record of this kind."""
        self._decisions.add((self._word(kind),))

    def prediction(self, source: str) -> None:
        """A stage was ordered and booked on a prediction of this source."""
        self._predictions.add((self._word(source),))

    def predicted(self, seconds: float, *, waited: bool) -> None:
        """Asking the learned models about a stage took so long."""
        self._predict.observe(("waited" if waited else "went_on",), seconds)

    def fallback(self, what: str) -> None:
        """Something else than planned was used, for instance ``prediction``."""
        self._fallbacks.add((self._word(what),))

    def set_fleet(self, snapshots: Iterable[NodeSnapshot]) -> None:
        """What the nodes look like now; kept until the next call."""
        self._snapshots = tuple(snapshots)

    # --- what Prometheus is told ----------------------------------------------------------------

    def render(self) -> bytes:
        """The text of ``/metrics``."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric family; the registry calls this."""
        yield InfoMetricFamily(
            "maestroctl_build", "Version of maestroctl.", value={"version": __version__}
        )
        for series in self.__dict__.values():
            if isinstance(series, CounterSeries | HistogramSeries):
                yield series.family()
        yield from _load_families(self.load() if self.load is not None else Load())
        yield from fleet_families(self._snapshots)
        if self._store is not None:
            yield from _store_families(self._store)

    def _word(self, word: str) -> str:
        """`word` while there are few of them; then ``other``."""
        found = self._words.get(word)
        if found is None:
            if len(self._words) >= _MAX_WORDS:
                return _OTHER
            found = self._words[word] = word
        return found


def _load_families(load: Load) -> Iterator[Metric]:
    queued = GaugeMetricFamily(
        "maestroctl_queue_length", "Stages in the coordinator's queue.", labels=("class",)
    )
    for service_class, count in load.queued.items():
        queued.add_metric((str(service_class),), count)
    yield queued
    yield GaugeMetricFamily(
        "maestroctl_in_flight_stages", "Stages at a node.", value=load.in_flight
    )
    kept = GaugeMetricFamily(
        "maestroctl_kept_slots", "Slots closed to batch stages.", labels=("model", "node")
    )
    for place, slots in load.kept_slots.items():
        kept.add_metric(place, slots)
    yield kept
    yield CounterMetricFamily(
        "maestroctl_stale_events", "Results of something over, ignored.", value=load.stale_events
    )


def _store_families(store: StoreGauge) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "maestroctl_store_lag_seconds", "Age of the oldest row not durable yet.", value=store.lag_s
    )
    yield GaugeMetricFamily(
        "maestroctl_store_pending_rows", "Rows not durable yet.", value=store.pending
    )
    yield from counters_of(
        "maestroctl_store_dropped_rows", "Rows dropped by a slow disk.", "row", store.dropped
    )
    yield from counters_of(
        "maestroctl_store_refused_rows", "Rows that cannot be stored: bugs.", "row", store.refused
    )
