"""Sweeps over single variables and chains of them, in Triton."""
