"""`python -m gumtrace_experiments` is the `gumtrace` command, also where nothing is installed and the sources are only
on the path: there are no entry points then, and `python -m gumtrace` does not know the commands of this package."""

import sys

from gumtrace_experiments.commands import main

sys.exit(main())
