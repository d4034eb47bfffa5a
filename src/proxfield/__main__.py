"""``python -m proxfield``: the command line."""

from proxfield.cli.main import main

if __name__ == "__main__":
    main()
