"""Run `gtpo` as `python -m gtpo_cli`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` puts the working folder first, which may be a stranger's run
    from gtpo_cli.cli.app import main

    main()
