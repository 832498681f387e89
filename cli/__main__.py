"""`python -m cli`, the same as `hearth`; child processes are started this way."""

from cli.main import main

if __name__ == "__main__":
    main()
