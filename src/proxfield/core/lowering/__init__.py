"""Lowering: a field in its fastest equivalent form."""
