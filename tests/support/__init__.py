"""Helpers that several kinds of tests share."""
