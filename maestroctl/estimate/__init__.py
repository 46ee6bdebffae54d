"""Closed-form equations: numbers in, numbers out.

Covers Maestro Eqs 1-4 and 6: service time, KV demand, memory need, activation time. Does not cover
anything learned (`predict`) nor any choice (`scheduler`). Units: seconds, bytes, tokens.
"""
