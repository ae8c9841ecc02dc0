"""Invariants, reference oracles and property tests that judge a scheduler from outside.

This package owns what must hold and how it is searched for violations. It knows nothing of the
command line.
"""
