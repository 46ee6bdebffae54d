"""A question that several models answered, as a value; needs no third-party package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnsweredQuery:
    """One question; mappings are by model.

    Attributes:
        question_tokens: of the question, estimated.
        correct: 1 = the model's answer was right.
        output_tokens: length of the model's answer.
        confidence: probability of a right answer as the router gave it.
    """

    question_tokens: int
    correct: Mapping[str, float]
    output_tokens: Mapping[str, int]
    confidence: Mapping[str, float]
