"""`python -m tallymark` is the command `tallymark`."""

import sys

from tallymark.cli import main

if __name__ == "__main__":
    sys.exit(main())
