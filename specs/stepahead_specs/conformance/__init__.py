"""The property suite for somebody else's scheduler.

Two ways in. A scheduler in Python gets an adapter of six methods (`adapter.Adapter`) and is then
driven: every order of a few moves (`exhaustive`), random long runs (`machine`), both also as a
pytest plugin (`plugin`). Any engine, in any language, writes a history in JSON lines (`history`),
which `checker` judges afterwards. Both use the invariants of `stepahead_specs.invariants`, and both
end in one page (`page`) that also says what was not checked.

Our kernel is imported by its own adapter alone.
"""
