"""`python -m t5x_lite`."""

import sys

from t5x_lite import cli

sys.exit(cli.main())
