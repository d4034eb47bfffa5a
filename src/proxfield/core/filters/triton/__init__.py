"""Filters on a GPU, in Triton."""
