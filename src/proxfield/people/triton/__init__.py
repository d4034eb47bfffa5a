"""Occupancy maps on a GPU, in Triton."""
