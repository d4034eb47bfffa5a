"""The terms a field is made of: one file per kind, named in `registry`."""
