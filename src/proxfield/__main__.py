"""``python -m proxfield`` and the console script: the command line, guarded from its imports on."""


def main() -> None:
    """Run the command line; Ctrl-C at any time leaves one line and exit code 130."""
    try:
        from proxfield.cli import signals

        signals.install()
        from proxfield.cli.main import cli, escape_characters

        escape_characters()
        cli.main()
    except KeyboardInterrupt:
        from proxfield.cli import signals

        signals.leave()
    except SystemExit as end:
        signals.finish(end.code)
        raise


if __name__ == "__main__":
    main()
