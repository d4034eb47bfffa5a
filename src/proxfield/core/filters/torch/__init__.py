"""Filters in plain torch, with gradients."""
