"""Searches that run rules: for low free energies, for labellings, and for several modes."""
