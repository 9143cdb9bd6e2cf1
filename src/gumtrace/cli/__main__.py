"""`python -m gumtrace.cli` is the `gumtrace` command."""

import sys

from gumtrace.cli import main

sys.exit(main())
