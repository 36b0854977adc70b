"""Progress that counts what it is told."""

from collections import Counter


class Tally:
    """Progress that counts what it is told."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.expected: Counter[str] = Counter()

    def expect(self, unit: str, amount: int) -> None:
        self.expected[unit] += amount

    def advance(self, unit: str, amount: int) -> None:
        assert amount >= 0
        self.done[unit] += amount
