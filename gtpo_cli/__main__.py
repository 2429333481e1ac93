"""`python -m gtpo_cli` is `gtpo`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, which `python -m` puts first: it may be a stranger's run
    from gtpo_cli.cli.app import main

    main()
