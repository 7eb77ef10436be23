r"""Regular expressions that somebody else sends, matched in time linear in the text.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `LinearPattern`: a parser, an automaton, and the walk over one text.

1. A whole text matches or not. No pattern takes exponential time, as a backtracking one would: the
   states after each character are a set, remembered for the next text (`MOST_REMEMBERED` bounds
   their nodes).
2. The syntax is RE2's without what a name has no use for: characters, `.`, classes, groups, `|`,
   `* + ? {n,m}`, `^ $`, `\d \s \w`, `\Q..\E`, `(?i)` and `(?s)` in front. Anything else is refused:
   ValueError says what.
3. Memory and time are bounded by `LONGEST`, `MOST_NODES` and `DEEPEST`. What was parsed has no part
   that is empty, so all that is compiled makes a node: counts multiply nodes, never work alone.
   Apache Kafka's RE2J has no such bound: `((((){1000}){1000}){1000}){1000}` takes all its memory.
4. A walk pauses after some two milliseconds of work, over however many texts that went. RE2 has
   wheels for Python and no pause: `(a?){1000}` ten times takes half a second for 32 KiB.

Source: Thompson's construction. Apache Kafka 4.3.1 uses RE2J for the ids of ListTransactions
(KIP-1152), Java's own for client metrics and for principals of certificates. Not here: who asks
(`api/transactions.py`, `cluster/stored_settings.py`, `security/principal_mapping.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator

from twisted_broker.java_numbers import is_digits

LONGEST, MOST_NODES, DEEPEST, MOST_REPEATED = 1_000, 300, 50, 1_000
# Nodes of all sets that are remembered, and a few for each set: five MiB.
MOST_REMEMBERED, OF_A_SET = 50_000, 4
# In characters whose states are remembered: some two milliseconds. A node costs more.
WORK_PER_STEP, WORK_OF_NODE = 30_000, 20
_MATCH, _SPLIT, _CHARACTER, _AT_START, _AT_END = range(5)
_DIGIT, _SPACE = (("0", "9"),), (("\t", "\n"), ("\f", "\r"), (" ", " "))
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_CLASSES = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_POSIX = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "digit": _DIGIT,
    "lower": (("a", "z"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (*_SPACE, ("\v", "\v")),
    "upper": (("A", "Z"),),
    "word": _WORD,
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LEAST, _MOST = "\0", "\U0010ffff"
_ANYTHING = ((_LEAST, _MOST),)

Ranges = tuple[tuple[str, str], ...]
State = frozenset[int]


class _Characters:
    """Which characters one place takes: a search among ranges that are in order and apart."""

    __slots__ = ("_folds", "_highs", "_lows", "_negated")

    def __init__(self, ranges: Ranges, negated: bool = False, folds: bool = False) -> None:
        self._lows: list[str] = []
        self._highs: list[str] = []
        for low, high in sorted(ranges):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], high)
            else:
                self._lows.append(low)
                self._highs.append(high)
        self._negated, self._folds = negated, folds

    def __contains__(self, character: str) -> bool:
        found = self._has(character) or (
            self._folds and (self._has(character.lower()) or self._has(character.upper()))
        )
        return found is not self._negated

    def _has(self, character: str) -> bool:
        # One that becomes several in the other case has no other case.
        at = bisect_right(self._lows, character) - 1
        return at >= 0 and character <= self._highs[at] and len(character) == 1


# What was parsed: ("characters", _Characters), ("start",), ("end",), ("all", [..]), ("any", [..]),
# ("repeat", of, least, most or None). Only _NOTHING is empty, and it is no part of another.
Parsed = tuple[object, ...]
_NOTHING: Parsed = ("all", [])


def _all_but(ranges: Ranges) -> Ranges:
    """`ranges` in order, apart from each other."""
    lows = (_LEAST, *(chr(ord(high) + 1) for _, high in ranges))
    highs = (*(chr(ord(low) - 1) for low, _ in ranges), _MOST)
    return tuple(zip(lows, highs, strict=True))


class _Parser:
    """One pattern, from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0
        self.folds = self.dot_is_all = False

    def parse(self) -> Parsed:
        while self.text.startswith("(?", self.position):
            flags = self.text[self.position + 2 :].partition(")")[0]
            if not flags or set(flags) - {"i", "s"}:
                break
            self.folds, self.dot_is_all = (
                self.folds or "i" in flags,
                self.dot_is_all or "s" in flags,
            )
            self.position += len(flags) + 3
        parsed = self.alternatives()
        if self.position < len(self.text):
            raise ValueError("an unexpected )")
        return parsed

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def next(self) -> str:
        if self.position >= len(self.text):
            raise ValueError("it ends too early")
        self.position += 1
        return self.text[self.position - 1]

    def takes(self, text: str) -> bool:
        if not self.text.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    def alternatives(self) -> Parsed:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("too many groups in each other")
        found = [self.sequence()]
        while self.takes("|"):
            found.append(self.sequence())
        self.depth -= 1
        if all(part is _NOTHING for part in found):
            return _NOTHING
        return found[0] if len(found) == 1 else ("any", found)

    def sequence(self) -> Parsed:
        found: list[Parsed] = []
        while self.peek() not in ("", "|", ")"):
            if self.takes("\\Q"):
                quoted, _, rest = self.text[self.position :].partition("\\E")
                self.position = len(self.text) - len(rest)
                found += [self.one(character) for character in quoted]
                if quoted:
                    found[-1] = self.repeated(found[-1])
            else:
                found.append(self.repeated(self.atom()))
        found = [part for part in found if part is not _NOTHING]
        if not found:
            return _NOTHING
        return found[0] if len(found) == 1 else ("all", found)

    def one(self, character: str) -> Parsed:
        return ("characters", _Characters(((character, character),), folds=self.folds))

    def atom(self) -> Parsed:
        character = self.next()
        if character == "(":
            return self.group()
        if character == "[":
            return ("characters", self.bracketed())
        if character == ".":
            ranges = _ANYTHING if self.dot_is_all else (("\n", "\n"),)
            return ("characters", _Characters(ranges, negated=not self.dot_is_all))
        if character in "^$":
            return ("start",) if character == "^" else ("end",)
        if character in "*+?":
            raise ValueError(f"nothing to repeat before {character}")
        if character == "{":
            self.position -= 1
            if self.counted() is not None:
                raise ValueError("nothing to repeat before a {count}")
            self.position += 1
        if character == "\\":
            return self.escaped()
        return self.one(character)

    def group(self) -> Parsed:
        if self.takes("?"):
            if self.takes("P<") or (self.peek() == "<" and self.takes("<")):
                name, closed, _ = self.text[self.position :].partition(">")
                if not closed or not name.isidentifier():
                    raise ValueError("a group without a name")
                self.position += len(name) + 1
            elif not self.takes(":"):
                raise ValueError(f"(?{self.peek()} is not supported")
        parsed = self.alternatives()
        if not self.takes(")"):
            raise ValueError("a ( without its )")
        return parsed

    def escaped(self) -> Parsed:
        character = self.next()
        if character in "Az":
            return ("start",) if character == "A" else ("end",)
        if character.lower() in _CLASSES:
            ranges = _CLASSES[character.lower()]
            return ("characters", _Characters(ranges, negated=character.isupper()))
        return self.one(self.literal(character))

    def literal(self, character: str) -> str:
        """The character that a backslash and `character` stand for."""
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = ""
            if self.takes("{"):
                while self.peek() != "}":
                    digits += self.next()
                self.next()
            else:
                digits = self.next() + self.next()
            try:
                return chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise ValueError(f"\\x{digits} is no character") from None
        if character.isalnum():
            raise ValueError(f"\\{character} is not supported")
        return character

    def bracketed(self) -> _Characters:
        negated = self.takes("^")
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or self.peek() != "]":
            is_first = False
            if self.takes("[:"):
                name, closed, _ = self.text[self.position :].partition(":]")
                if not closed or name not in _POSIX:
                    raise ValueError(f"[:{name[:20]}:] is not supported")
                self.position += len(name) + 2
                ranges += _POSIX[name]
                continue
            low = self.next()
            if low == "\\":
                low = self.next()
                if low.lower() in _CLASSES:
                    of_class = _CLASSES[low.lower()]
                    ranges += _all_but(of_class) if low.isupper() else of_class
                    continue
                low = self.literal(low)
            high = low
            ahead = self.text[self.position + 1 : self.position + 2]
            if self.peek() == "-" and ahead not in ("]", ""):
                self.next()
                high = self.next()
                if high == "\\":
                    high = self.literal(self.next())
                if high < low:
                    raise ValueError(f"{low}-{high} is no range")
            ranges.append((low, high))
        self.next()
        return _Characters(tuple(ranges), negated, self.folds)

    def repeated(self, atom: Parsed) -> Parsed:
        character = self.peek()
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(character)
        if bounds is not None:
            self.next()
        elif character == "{":
            bounds = self.counted()
        if bounds is None:
            return atom
        self.takes("?")  # it prefers less, which a whole match does not see
        if self.peek() in ("*", "+", "?") and self.peek():
            raise ValueError(f"{self.peek()} after a repetition")
        if self.peek() == "{" and self.counted() is not None:
            raise ValueError("a {count} after a repetition")
        if atom is _NOTHING or bounds[1] == 0:
            return _NOTHING
        return atom if bounds == (1, 1) else ("repeat", atom, *bounds)

    def counted(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}`, `{2,5}`; anything else is a brace."""
        inside, closed, _ = self.text[self.position + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not _is_count(low) or (high and not _is_count(high)):
            return None
        self.position += len(inside) + 2
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if max(least, most or 0) > MOST_REPEATED or (most is not None and most < least):
            raise ValueError(f"{{{inside}}} is out of bounds")
        return least, most


def _is_count(digits: str) -> bool:
    return is_digits(digits) and (digits == "0" or digits[0] != "0")


class LinearPattern:
    """Raises ValueError for what is no pattern."""

    __slots__ = ("_after", "_first", "_nodes", "_remembered", "_start", "_work")

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ValueError(f"longer than {LONGEST} characters")
        self._nodes: list[tuple[int, _Characters | None, int, int]] = []
        parsed = _Parser(text).parse()
        self._first = self._compile(parsed, self._node(_MATCH))
        self._after: dict[tuple[State, str], State] = {}
        self._remembered = self._work = 0
        self._start = self._closure([self._first], at_start=True)

    def matches(self, text: str) -> bool:
        """Whether all of `text` matches."""
        walk = self.steps(text)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return bool(end.value)

    def steps(self, text: str) -> Generator[None, None, bool]:
        """As `matches`, pausing where it takes long, be it over many ids."""
        state, work = self._start, self._work
        for character in text:
            work += 1
            found = self._after.get((state, character))
            if found is None:
                work += (len(state) + 1) * WORK_OF_NODE
                found = self._next(state, character)
            if work > WORK_PER_STEP:
                work = 0
                yield
            state = found
            if not state:
                break
        self._work = work
        ended = self._closure(state, at_start=not text, at_end=True)
        return any(self._nodes[node][0] == _MATCH for node in ended)

    def _next(self, state: State, character: str) -> State:
        following = []
        for node in state:
            kind, characters, after, _ = self._nodes[node]
            if kind == _CHARACTER and characters is not None and character in characters:
                following.append(after)
        if self._remembered >= MOST_REMEMBERED:
            self._after.clear()
            self._remembered = 0
        found = self._after[state, character] = self._closure(following)
        self._remembered += len(found) + OF_A_SET
        return found

    def _closure(
        self, nodes: list[int] | State, at_start: bool = False, at_end: bool = False
    ) -> State:
        """`nodes`, and all that is reached from them without a character."""
        found, waiting = set[int](), list(nodes)
        while waiting:
            node = waiting.pop()
            if node in found:
                continue
            found.add(node)
            kind, _, after, other = self._nodes[node]
            if kind == _SPLIT:
                waiting += (after, other)
            elif (kind == _AT_START and at_start) or (kind == _AT_END and at_end):
                waiting.append(after)
        return frozenset(found)

    def _node(
        self, kind: int, characters: _Characters | None = None, after: int = -1, other: int = -1
    ) -> int:
        if len(self._nodes) >= MOST_NODES:
            raise ValueError("too large")
        self._nodes.append((kind, characters, after, other))
        return len(self._nodes) - 1

    def _compile(self, parsed: Parsed, after: int) -> int:
        """Returns the node where `parsed` begins; after it the walk goes on at node `after`."""
        kind = parsed[0]
        if kind == "characters":
            characters = parsed[1]
            assert isinstance(characters, _Characters)
            return self._node(_CHARACTER, characters, after)
        if kind == "start":
            return self._node(_AT_START, None, after)
        if kind == "end":
            return self._node(_AT_END, None, after)
        if kind == "repeat":
            return self._compile_repeated(parsed, after)
        parts = parsed[1]
        assert isinstance(parts, list)
        if kind == "all":
            for part in reversed(parts):
                after = self._compile(part, after)
            return after
        begin = self._compile(parts[-1], after)
        for part in parts[-2::-1]:
            begin = self._node(_SPLIT, None, self._compile(part, after), begin)
        return begin

    def _compile_repeated(self, parsed: Parsed, after: int) -> int:
        _, atom, least, most = parsed
        assert isinstance(atom, tuple) and isinstance(least, int)
        if most is None:
            loop = self._node(_SPLIT, None, -1, after)
            self._nodes[loop] = (_SPLIT, None, self._compile(atom, loop), after)
            after = loop
        else:
            assert isinstance(most, int)
            end = after
            for _ in range(most - least):
                after = self._node(_SPLIT, None, self._compile(atom, after), end)
        for _ in range(least):
            after = self._compile(atom, after)
        return after
