"""The one declarative schema: what keys a file may have, of which kind, with which default.

Everything that is said about a key is said once, in a `Key`: validation, the hint for a misspelt
key, the default shown by ``config show`` and the text of ``docs/configuration.md`` all come from
here. Defaults are those of the domain's dataclasses (`Table.spec`), so they cannot drift.

See also: `config.fleet_tables` and `config.workflow_tables` (the tables themselves),
`config.source` (reads a table and collects what is wrong with it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from maestroctl.config.kinds import Kind


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table.

    Attributes:
        name: as it is written.
        kind: what value it takes.
        doc: one sentence for the reference.
        field: the field of `Table.spec` it sets; the same name when empty.
        required: there is no default.
        absent: what happens without the key, where the default is no plain value.
        env: environment variable that sets it, over the file and under the command line.
        get: how its value is read back from the spec, where that is no single field.
    """

    name: str
    kind: Kind
    doc: str
    field: str = ""
    required: bool = False
    absent: str = ""
    env: str = ""
    get: Callable[[Any], Any] | None = None

    @property
    def target(self) -> str:
        """Field of the spec that the key sets."""
        return self.field or self.name

    def value_in(self, spec: Any) -> Any:
        """The value that holds in `spec`."""
        return self.get(spec) if self.get is not None else getattr(spec, self.target)

    def show(self, value: Any) -> str:
        """`value` as a person would write it, secrets masked."""
        if value is None or (value == () and self.absent):
            return self.absent.replace("`", "") or "unset"
        return self.kind.show(value)


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of table of a file.

    Attributes:
        header: as it is written, for instance ``[[node]]``.
        doc: a sentence or two for the reference.
        keys: in the order of the reference.
        spec: domain dataclass whose field defaults apply; None for a table that is only a part.
    """

    header: str
    doc: str
    keys: tuple[Key, ...]
    spec: type[Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Keys that may be written."""
        return tuple(key.name for key in self.keys)

    def default_text(self, key: Key) -> str:
        """What the reference says about leaving `key` out."""
        if key.required:
            return "required"
        if key.absent:
            return key.absent
        default = self._default(key)
        return "unset" if default is None else key.show(default)

    def _default(self, key: Key) -> Any:
        if self.spec is None:
            return None
        if key.get is not None:
            return key.get(self.spec())
        for field in dataclasses.fields(self.spec):
            if field.name == key.target:
                if field.default is not dataclasses.MISSING:
                    return field.default
                if field.default_factory is not dataclasses.MISSING:
                    return field.default_factory()
        return None
