"""The command line: `commands` says what each command takes; the work is imported when it is due.

So help costs next to nothing: the declarations import click, and no numpy.
"""
