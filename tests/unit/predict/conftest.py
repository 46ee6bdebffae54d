"""Small made-up traces: enough structure to learn from, small enough to fit in a second."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("lightgbm", reason="the predict extra is not installed")

from maestroctl.predict import output_length, remaining_length, tool_intent
from maestroctl.predict.gbm import GbmParams
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.traces import TraceJob, job_from_rows
from maestroctl.predict.train import TrainConfig, train_model


def make_rows(number: int, *, app: str = "shop", task: str | None = None) -> list[dict[str, Any]]:
    """One job of five stages: an agent that calls tools and a user who answers."""
    rng = random.Random(f"{app}/{number}")
    model = rng.choice(["small", "large"])
    rows = []
    for index in range(5):
        agent = index % 2 == 0
        calls = agent and rng.random() < (0.9 if index < 3 else 0.2)
        length = 20 if calls else 90 if agent else 40
        length = int(length * (2 if model == "large" else 1) * rng.uniform(0.7, 1.4))
        rows.append(
            {
                "source": f"made_{app}",
                "app": app,
                "job_id": f"{app}-{number}",
                "task_id": task or f"{app}-task-{number // 2}",
                "stage_index": index,
                "role": "agent" if agent else "user",
                "n_roles_in_app": 2,
                "invocation_index": index // 2,
                "tools_available": 7 if agent else 0,
                "tool_call": calls,
                "system_text": "You sell shoes." if agent else "",
                "prompt_tail": f"question {rng.randrange(99)} " + "please look it up. " * index,
                "prompt_tokens": 30 + 20 * index,
                "output_tokens": length,
                "tokens_src": "logged",
                "model": model,
                "topology": "agent_user_loop",
                "job_success": rng.random() < 0.5,
            }
        )
    return rows


def make_jobs(count: int, *, app: str = "shop") -> list[TraceJob]:
    """Jobs of one application, two per task."""
    return [job_from_rows(make_rows(number, app=app)) for number in range(count)]


@pytest.fixture(scope="session", autouse=True)
def _quick_heads() -> Iterator[None]:
    """A dozen trees per head: the tests are about rules, not about accuracy."""
    patch = pytest.MonkeyPatch()
    quick = {
        name: GbmParams(p.objective, rounds=12, num_leaves=7, min_data_in_leaf=5, alpha=p.alpha,
                        learning_rate=0.2)
        for name, p in output_length.HEADS.items()
    }  # fmt: skip
    for name, params in quick.items():
        patch.setitem(output_length.HEADS, name, params)
    patch.setattr(tool_intent, "CLASSIFIER", GbmParams("binary", rounds=12, num_leaves=7,
                                                      min_data_in_leaf=5))  # fmt: skip
    patch.setattr(remaining_length, "TOTAL", GbmParams("l1", rounds=12, num_leaves=7,
                                                       min_data_in_leaf=5))  # fmt: skip
    yield
    patch.undo()


@pytest.fixture(scope="session")
def jobs() -> list[TraceJob]:
    """Eighty jobs of two applications."""
    return [*make_jobs(50), *make_jobs(30, app="bank")]


@pytest.fixture(scope="session")
def config() -> TrainConfig:
    """Quick settings."""
    return TrainConfig(num_folds=2, min_count=2, num_threads=1)


@pytest.fixture(scope="session")
def model(jobs: list[TraceJob], config: TrainConfig) -> PredictorModel:
    """Fitted on all made-up jobs."""
    return train_model(jobs, config)
