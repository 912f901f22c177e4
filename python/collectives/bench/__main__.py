"""``python -m collectives.bench``."""

import sys

from collectives.bench.run import main

if __name__ == "__main__":
    sys.exit(main())
