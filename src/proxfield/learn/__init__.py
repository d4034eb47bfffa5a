"""Parameters of fields, learnt from examples."""
