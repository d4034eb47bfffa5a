"""Terms that a GPU iterates itself, one file per kind."""
