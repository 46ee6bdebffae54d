from __future__ import annotations

import pytest

from maestroctl.testing.stub_engine.faults import Faults
from maestroctl.testing.stub_engine.options import MIB, parse_options, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1048576", MIB), ("64M", 64 * MIB), ("1g", 1024 * MIB), ("2 MiB", 2 * MIB), ("512b", 512)],
)
def test_sizes_take_suffixes_of_1024(text: str, expected: int) -> None:
    assert parse_size(text) == expected


def test_served_names_replace_the_model_name() -> None:
    options = parse_options(["--model", "path/m", "--served-model-name", "a", "b"])
    assert options.served_names == ("a", "b")
    assert options.model == "path/m"
    assert parse_options(["--model", "m"]).served_names == ("m",)


def test_flags_of_vllm_without_a_meaning_here_are_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = parse_options(["--enforce-eager", "--dtype", "bfloat16", "--max_num_seqs", "7"])
    assert options.max_num_seqs == 7
    assert "--enforce-eager" in capsys.readouterr().err


def test_unknown_flags_are_refused_when_not_tolerated() -> None:
    with pytest.raises(SystemExit, match="--enforce-eager"):
        parse_options(["--no-tolerate-unknown-flags", "--enforce-eager"])


def test_kv_size_of_vllm_is_used_unless_the_stub_says_otherwise() -> None:
    assert parse_options(["--kv-cache-memory-bytes", "4M"]).kv_bytes == 4 * MIB
    both = parse_options(["--kv-cache-memory-bytes", "4M", "--kv-mib", "1"])
    assert both.kv_bytes == MIB
    assert both.num_blocks == MIB // (64 * 16)


def test_api_key_also_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "from-env")
    assert parse_options([]).api_keys == ("from-env",)
    assert parse_options(["--api-key", "a", "b"]).api_keys == ("a", "b")


def faults(*argv: str) -> Faults:
    return Faults.from_options(parse_options(argv))


def test_first_byte_failures_are_counted_or_endless() -> None:
    some = faults("--fail-before-first-byte", "2")
    assert [some.take_first_byte_failure() for _ in range(4)] == [True, True, False, False]
    always = faults("--fail-before-first-byte")
    assert all(always.take_first_byte_failure() for _ in range(4))


def test_a_wake_fails_once_or_always() -> None:
    once, always = faults("--fail-wake", "once"), faults("--fail-wake", "always")
    assert [once.take_wake_failure() for _ in range(3)] == [True, False, False]
    assert [always.take_wake_failure() for _ in range(3)] == [True, True, True]


@pytest.mark.parametrize(
    ("argv", "produced", "left", "due"),
    [
        ([], 5, None, None),
        (["--exit-at-token", "3"], 0, 2, None),
        (["--exit-at-token", "3"], 2, 0, "exit"),
        (["--exit-at-token", "1"], 0, 0, "exit"),
        (["--cut-stream-at", "3"], 1, 2, None),
        (["--cut-stream-at", "3"], 3, 0, "cut"),
        (["--stall-at-token", "3", "--cut-stream-at", "9"], 3, 0, "stall"),
    ],
)
def test_token_switches_act_at_their_token(
    argv: list[str], produced: int, left: int | None, due: str | None
) -> None:
    switches = faults(*argv)
    assert switches.tokens_until_fault(produced) == left
    assert switches.due(produced) == due


def test_an_unknown_switch_changes_nothing() -> None:
    switches = faults()
    with pytest.raises(ValueError, match="no such switch: nope"):
        switches.update({"plain_errors": True, "nope": 1})
    assert switches.plain_errors is False
    switches.update({"plain_errors": True})
    assert switches.as_dict()["plain_errors"] is True
