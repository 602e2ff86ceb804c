"""`python -m mlx_grpo_kit.course.book` makes the book."""

import sys

from mlx_grpo_kit.course.book.website import main

sys.exit(main())
