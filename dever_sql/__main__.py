"""`python -m dever_sql`: the same as the command `dever`."""

import sys

from .cli import main

sys.exit(main())
