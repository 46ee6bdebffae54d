"""Log rotation and tails."""

from __future__ import annotations

from pathlib import Path

from maestroctl.live.engine.logs import LogLimits, read_last_lines, rotate_log


def test_small_log_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("abc")
    assert not rotate_log(log, LogLimits(max_bytes=3, keep=2))
    assert not rotate_log(tmp_path / "absent.log", LogLimits())


def test_older_logs_move_up_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for round_number in range(4):
        log.write_text(f"round {round_number}")
        assert rotate_log(log, LogLimits(max_bytes=1, keep=2))
    assert log.read_text() == ""
    assert (tmp_path / "x.log.1").read_text() == "round 3"
    assert (tmp_path / "x.log.2").read_text() == "round 2"
    assert not (tmp_path / "x.log.3").exists()


def test_writer_that_appends_goes_on_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("a") as writer:
        writer.write("before")
        writer.flush()
        rotate_log(log, LogLimits(max_bytes=1, keep=1))
        writer.write("after")
    assert log.read_text() == "after"


def test_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\n".join(b"line %d" % n for n in range(50_000)) + b"\n\xff\xfe\n")
    lines = read_last_lines(log, 3)
    assert lines[:2] == ("line 49998", "line 49999")
    assert read_last_lines(tmp_path / "absent") == ()
