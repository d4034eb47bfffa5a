"""The command line: one module per subcommand, loaded when it is called.

Modules of subcommands import click alone at the top; whatever they compute with is imported
where it is used, so that help costs next to nothing.
"""
