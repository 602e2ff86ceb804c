"""Texts that no task may take for an answer."""

from mlx_grpo_kit.tasks.parsing import MAX_DEPTH, MAX_DIGITS
from tests.every import every

# Texts a policy might write to crash, stall or cheat its judge. None of them is an integer or an expression.
HOSTILE = {
    "empty": "",
    "spaces": "   ",
    "import": "__import__('os')",
    "call": "print(1)",
    "power tower": "9**9**9",
    "power": "2^10",
    "open brackets": "(" * 10_000,
    "balanced brackets": "(" * 5_000 + "1" + ")" * 5_000,
    "deep but short": "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1),
    "full-width digits": "\uff14\uff12",
    "arabic digit": "\u0663",
    "superscript": "4\u00b2",
    "unicode minus": "5\u22121",
    "no-break space": "\u00a046",
    "infinity": "1e999",
    "nan": "nan",
    "hexadecimal": "0x2e",
    "underscore": "4_6",
    "decimal point": "46.0",
    "plus sign": "+46",
    "leading zero": "046",
    "minus zero": "-0",
    "huge number": "9" * 1_000_000,
    "ten digits": "1" * (MAX_DIGITS + 1),
    "null byte": "46\0",
    "newline": "46\n",
    "tab": "\t46",
    "escape codes": "\x1b[2J46",
    "lone surrogate": "\ud80046",
    "two answers": "46 47",
    "trailing operator": "46+",
    "juxtaposition": "2(3)",
    "empty brackets": "()",
    "unclosed": "(1+2",
    "unopened": "1+2)",
    "double operator": "1+-2",
    "floor division": "8//2",
    "comparison": "1==1",
    "division by zero": "1/0",
    "hidden division by zero": "1/(2-2)",
    "fullwidth operator": "1\uff0b2",
    "comma": "1,000",
    "megabyte of spaces": " " * 1_000_000,
}

every_hostile_text = every("hostile_text", HOSTILE.values(), ids=HOSTILE)
