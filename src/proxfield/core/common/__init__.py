"""Small helpers that every other part may use."""
