"""Updates of all variables at once, in Triton."""
