"""How much is held in memory at a time, whatever the number of users or points."""

NUMBERS_AT_ONCE = 2**22  # 32 MB of float64


def rows_at_once(width: int) -> int:
    """Rows of so many numbers to take at a time, at least 1."""
    return max(1, NUMBERS_AT_ONCE // max(1, width))
