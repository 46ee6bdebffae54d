"""Test support that ships with maestroctl: the stub engine, its launcher, load clients.

Nothing is imported here: the stub engine starts hundreds of times in a test run, and every
module pulled in by this file would be paid for at each start.
"""
