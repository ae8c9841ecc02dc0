"""The command line: replay, compare and report.

This package owns arguments, progress, tables and result files. It decides nothing about
scheduling: what it prints comes from the packages below it.
"""
