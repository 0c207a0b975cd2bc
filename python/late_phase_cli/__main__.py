import sys

from late_phase_cli.main import main

sys.exit(main())
