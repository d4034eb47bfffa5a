"""The core: what a field is made of, and how it is solved."""
