"""Filters compiled with numba."""
