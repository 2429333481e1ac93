"""`python -m gtpo_cli` is `gtpo`."""

from gtpo_cli.cli.app import main

if __name__ == "__main__":
    main()
