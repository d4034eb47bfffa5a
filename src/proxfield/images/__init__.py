"""Dense CRFs over images."""
