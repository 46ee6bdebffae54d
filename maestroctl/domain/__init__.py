"""Vocabulary: frozen dataclasses and enums that check their own fields and do nothing else."""
