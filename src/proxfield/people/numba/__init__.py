"""Occupancy maps compiled for the CPU. Here: numbers that the term and its kernels share."""

SMALLEST = 1e-14
"""A p_i of 0 counts as this. The energy is off by at most Σ |w| times it, and the slopes of others
by that too: less than they are rounded by."""
DIRECT = 1e-6
"""Below this p_i, the difference of integral images has lost its digits: pixels are summed."""
