"""Inference: from a field, a rule and limits to a result."""
