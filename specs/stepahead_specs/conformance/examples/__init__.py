"""A scheduler as a user would write it, its adapter, and the same with three planted bugs."""
