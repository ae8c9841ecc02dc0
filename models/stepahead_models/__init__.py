"""Simulators, device profiles, token models and traces that drive the kernel.

This package owns the clock, the CPU, NPU and DMA simulators and the readers of request traces.
It sees the kernel only through events and commands, and knows nothing of invariants or of the
command line.
"""
