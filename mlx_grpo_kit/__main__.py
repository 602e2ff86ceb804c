"""`python -m mlx_grpo_kit COMMAND`; the commands are in cli/."""

import sys

from mlx_grpo_kit.cli import main

sys.exit(main())
