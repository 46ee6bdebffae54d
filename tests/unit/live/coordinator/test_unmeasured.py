"""Which models a person is told about: those of estimated costs, each once."""

from __future__ import annotations

from dataclasses import replace

from maestroctl.domain.profile import DECLARED, GEOMETRY, MEASURED
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.live.coordinator.unmeasured import describe_unmeasured
from maestroctl.testing.coordinator_builders import make_profile, make_snapshot


def snapshot(node: str, **origins: str) -> NodeSnapshot:
    profiles = [replace(make_profile(name), origin=origin) for name, origin in origins.items()]
    return make_snapshot(node, profiles=profiles)


def test_only_estimated_models_are_named_and_only_once() -> None:
    told: set[str] = set()
    line = describe_unmeasured(snapshot("a", x=GEOMETRY, y=MEASURED, z=DECLARED), told)
    assert line is not None
    assert "Costs of x are estimated" in line
    assert "`maestroctl profile` measures them" in line
    assert describe_unmeasured(snapshot("b", x=GEOMETRY, y=MEASURED), told) is None


def test_with_many_models_the_line_stays_short() -> None:
    names = {f"m{number}": GEOMETRY for number in range(30)}
    line = describe_unmeasured(snapshot("a", **names), set())
    assert line is not None
    assert "and 26 more" in line
