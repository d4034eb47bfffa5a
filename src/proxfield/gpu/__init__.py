"""Filters on a GPU. Nothing heavy is imported before a module of this package is asked for."""
