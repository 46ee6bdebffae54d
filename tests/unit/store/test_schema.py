"""The schema stays portable and every row type has its table."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from maestroctl.store import schema
from maestroctl.store.codec import CODECS
from maestroctl.store.database import Store
from maestroctl.store.rows import ObservationRow

SQLITE = sa.create_engine("sqlite://").dialect
POSTGRESQL = sa.dialects.registry.load("postgresql")(paramstyle="format")


@pytest.mark.parametrize("kind", CODECS, ids=lambda kind: kind.__name__)
def test_a_row_has_the_columns_of_its_table(kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == {column.name for column in CODECS[kind].table.columns} - {"id"}


@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=str)
def test_tables_and_upserts_compile_for_another_database_alike(table: sa.Table) -> None:
    assert str(CreateTable(table).compile(dialect=POSTGRESQL))
    ours, columns = schema.upsert_statement(table, SQLITE)
    theirs, same = schema.upsert_statement(table, POSTGRESQL)
    assert columns == same
    assert ours.count("?") == len(columns)
    plain = re.sub(r"::\w+", "", theirs).replace('"', "")  # casts of parameters, quoted names
    assert ours.replace("?", "%s").replace('"', "") == plain


def test_a_database_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    said = {"called": True, "not": False, "cut": False}
    rows = [
        ObservationRow(name, 1.0, "", "", "", "", "{}", 1, 2, 0.5, "", 3, called, name == "cut")
        for name, called in said.items()
    ]
    with Store.open(url) as store:
        store.commit(rows)
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as old, old:
        old.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
        (declared,) = old.execute("SELECT sql FROM sqlite_master WHERE name = 'observations'")
        old.execute("ALTER TABLE observations RENAME TO kept")
        old.execute("DROP INDEX observations_by_time")
        old.execute(declared[0].replace("tool_called BOOLEAN", "tool_called BOOLEAN NOT NULL"))
        old.execute("CREATE INDEX observations_by_time ON observations (at)")
        old.execute("INSERT INTO observations SELECT * FROM kept")
        old.execute("DROP TABLE kept")
    for _ in range(2):  # the second time there is nothing to do
        with Store.open(url) as store:
            said = {row.stage_id: row.tool_called for row in store.observations()}
            assert said == {"called": True, "not": False, "cut": None}
    with Store.open(url) as store:
        store.commit([dataclasses.replace(rows[0], tool_called=None)])
        assert {row.tool_called for row in store.observations()} == {False, None}
