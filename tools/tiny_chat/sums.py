"""Small sums: plus and minus up to 99, products up to 12 x 12, and an honest word on larger ones.

Owns the wording of sums, and which pairs training never sees, in either order.
Read next: `conversations.py`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random

from tools.tiny_chat.grammar import expand
from tools.tiny_chat.written import load_text

_HELD_OUT_SHARE = 10  # one pair in this many


@dataclass(frozen=True, slots=True)
class Sum:
    """Two numbers and the sign between them: `+`, `-` or `x`."""

    a: int
    sign: str
    b: int

    @property
    def value(self) -> int:
        """The result."""
        match self.sign:
            case "+":
                return self.a + self.b
            case "-":
                return self.a - self.b
            case _:
                return self.a * self.b

    @property
    def is_held_out(self) -> bool:
        """True for the sums training never sees; a sum and its mirror are held out together."""
        low, high = sorted((self.a, self.b))
        if self.sign == "x" or high < 10:  # tables and single digits are learned by heart
            return False
        return zlib.crc32(f"{self.sign}{low},{high}".encode()) % _HELD_OUT_SHARE == 0

    @property
    def spoken(self) -> str:
        """How an answer names it: `17 + 25`."""
        return f"{self.a} {self.sign} {self.b}"

    @property
    def result(self) -> str:
        """The last words of every answer: `17 + 25 = 42.`"""
        return f"{self.spoken} = {self.value}."

    @property
    def answer(self) -> str:
        """The whole answer, with its working where the sum is not known by heart.

        `Ones: 7 + 5 = 12. Tens: 1 + 2 + 1 = 4. So 17 + 25 = 42.` A small model that may write the
        carry down needs a tenth of the examples of one that has to guess it ahead.
        """
        if self.sign == "x" or max(self.a, self.b) < 10:
            return self.result
        working = self._added() if self.sign == "+" else self._taken_away()
        return f"{working} So {self.result}"

    def _added(self) -> str:
        ones, tens = self.a % 10 + self.b % 10, (self.a // 10, self.b // 10)
        carry = ones // 10
        return (
            f"Ones: {self.a % 10} + {self.b % 10} = {ones}. "
            f"Tens: {tens[0]} + {tens[1]} + {carry} = {sum(tens) + carry}."
        )

    def _taken_away(self) -> str:
        high, low = max(self.a, self.b), min(self.a, self.b)
        borrowed = int(high % 10 < low % 10)
        ones = high % 10 + 10 * borrowed
        tens = high // 10 - low // 10 - borrowed
        turned = "" if self.a >= self.b else f"Turned round, {high} - {low}. "
        return (
            f"{turned}Ones: {ones} - {low % 10} = {ones - low % 10}. "
            f"Tens: {high // 10} - {low // 10} - {borrowed} = {tens}."
        )


class Sums:
    """An endless source of sums and of questions for them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        text = load_text("sums")
        self.too_large: str = text["too_large"]
        self._templates: dict[str, list[str]] = {
            "+": text["plus"],
            "-": text["minus"],
            "x": text["times"],
        }
        self._beyond: list[str] = text["beyond"]
        self._small: list[str] = text["number_words"]["zero_to_nineteen"]
        self._tens: list[str] = text["number_words"]["tens"]

    def sample(self) -> Sum:
        """Returns a sum that training may see."""
        while True:
            sign = self._rng.choices("+-x", (46, 40, 14))[0]
            top = 12 if sign == "x" else 20 if self._rng.random() < 0.12 else 99
            a, b = self._rng.randint(0, top), self._rng.randint(0, top)
            if sign == "-" and a < b and self._rng.random() < 0.5:
                a, b = b, a
            if not (picked := Sum(a, sign, b)).is_held_out:
                return picked

    def asked(self, picked: Sum) -> str:
        """Returns a question for the sum, not yet dressed."""
        template = expand(self._rng.choice(self._templates[picked.sign]), self._rng)
        spelt = self._in_words if self._rng.random() < 0.06 else str
        return template.replace("{a}", spelt(picked.a)).replace("{b}", spelt(picked.b))

    def asked_beyond(self) -> str:
        """Returns a question for arithmetic that tiny-chat does not do."""
        numbers = {
            "{a}": self._rng.randint(2, 99),
            "{b}": self._rng.randint(2, 99),
            "{c}": self._rng.randint(13, 99),
            "{d}": self._rng.randint(2, 99),
            "{A}": self._rng.randint(100, 10 ** self._rng.randint(3, 6)),
            "{B}": self._rng.randint(13, 10 ** self._rng.randint(2, 5)),
        }
        template = expand(self._rng.choice(self._beyond), self._rng)
        for name, number in numbers.items():
            template = template.replace(name, str(number))
        return template

    def _in_words(self, number: int) -> str:
        if number < len(self._small):
            return self._small[number]
        tens, ones = divmod(number, 10)
        return self._tens[tens - 2] + (f"-{self._small[ones]}" if ones else "")
