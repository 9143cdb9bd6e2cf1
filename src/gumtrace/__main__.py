"""`python -m gumtrace` is the `gumtrace` command."""

import sys

from gumtrace.cli import main

sys.exit(main())
