"""The schema stays portable and every row type has its table."""

from __future__ import annotations

import dataclasses
import re

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from maestroctl.store import schema
from maestroctl.store.codec import CODECS

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
