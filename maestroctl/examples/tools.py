"""Tools for the example workflows: pure functions over a few built-in notes.

They reach no file, no network and no clock, so they are safe to allow
(``allow = ["maestroctl.examples.tools:*"]``), and they show what a tool looks like: plain
arguments, a plain result, an error where there is nothing to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["add", "list_notes", "read_note", "search_notes", "word_count"]

NOTES: Mapping[str, str] = {
    "coffee": "Coffee is made from roasted seeds. Light roasts keep more acid, dark ones taste"
    " more bitter. Water just below boiling extracts best.",
    "tea": "Green, black and white tea come from the same plant. Black tea is oxidised, green tea"
    " is heated early so that it stays green.",
    "bread": "Bread rises because yeast turns sugar into gas. A long cold rise gives more taste.",
    "bicycle": "A bicycle turns nearly all effort into motion. Low gears help uphill, high gears"
    " on the flat.",
    "rain": "Rain forms when droplets in a cloud grow too heavy to float. Warm air holds more"
    " water than cold air.",
    "bees": "Honey bees tell each other where flowers are by dancing. A hive in summer has up to"
    " sixty thousand bees.",
}
_MAX_HITS = 3


def word_count(text: str) -> int:
    """Number of words in `text`."""
    return len(text.split())


def add(a: float, b: float) -> float:
    """Sum of two numbers."""
    return a + b


def list_notes() -> list[str]:
    """Titles of all notes."""
    return sorted(NOTES)


def read_note(title: str) -> str:
    """Text of one note.

    Raises:
        LookupError: there is no such note; names those there are.
    """
    note = NOTES.get(title.strip().lower())
    if note is None:
        raise LookupError(f"no note {title!r}; there are: {', '.join(sorted(NOTES))}")
    return note


def search_notes(query: str) -> list[dict[str, str]]:
    """Notes that share words with `query`, best first, at most three."""
    words = set(re.findall(r"\w+", query.lower()))
    scored = [
        (len(words & set(re.findall(r"\w+", f"{title} {text}".lower()))), title)
        for title, text in NOTES.items()
    ]
    best = sorted(((-score, title) for score, title in scored if score > 0))[:_MAX_HITS]
    return [{"title": title, "text": NOTES[title]} for _, title in best]
