"""Plain values out of a pickle that is read and never run: what would be called is noted, not called."""

import pickletools
from dataclasses import dataclass
from typing import Any, TypeVar

from privet.data.files import damage_error

T = TypeVar("T", str, bytes)
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE",
    "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = {"PROTO", "FRAME", "STOP"}


@dataclass(slots=True)
class Call:
    """What a pickle asks to be made: the name of a function, its arguments, and a state. Nothing is made of it."""

    function: str
    arguments: Any
    state: Any = None


def read_plain_values(content: bytes, *, name: str) -> Any:
    """The value in a pickle, of lists, dicts, tuples, numbers, text and `Call`s.

    >>> import os, pickle
    >>> class Trap:
    ...     def __reduce__(self): return os.system, ("echo caught",)
    >>> read_plain_values(pickle.dumps([1, Trap()], protocol=2), name="trap")[1].arguments
    ('echo caught',)

    Raises:
        InvalidValue: it is damaged, or has anything else in it.
    """
    machine = _Machine(len(content))
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except Exception as error:  # a damaged file may fail in any way
        raise damage_error(error, "pickle of plain values", name) from None
    return value


class _Machine:
    """The stack, the marks in it, and what was kept by number. What it makes is no longer than twice the pickle."""

    def __init__(self, length: int) -> None:
        self.left = 2 * length
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.kept: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do one opcode."""
        if name in _NOTHING:
            return
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _FIXED:
            self.stack.append(_FIXED[name])
        elif name in _SHORT_TUPLES:
            self.stack.append(tuple(self._pop_last(_SHORT_TUPLES[name])))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.kept[len(self.kept) if argument is None else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.kept[argument])
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        match name:
            case "EMPTY_DICT" | "EMPTY_LIST":
                self.stack.append({} if name == "EMPTY_DICT" else [])
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(tuple(self._pop_to_mark()))
            case "APPEND" | "APPENDS":
                items = self._pop_to_mark() if name == "APPENDS" else self._pop_last(1)
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self._pop_to_mark() if name == "SETITEMS" else self._pop_last(2)
                if not all(type(key) in (str, bytes, int) for key in items[::2]):  # a deep tuple's hash never ends
                    raise TypeError("it has a key that is neither text nor a number")
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL":
                self.stack.append(Call(argument or self._count_value(" ".join(self._pop_last(2))), None))
            case "REDUCE":
                function, arguments = self._pop_last(2)
                made = Call(function.function, arguments)
                if made.function == "_codecs encode":  # how Python 3 writes bytes for Python 2
                    text, _ = arguments
                    made = self._count_value(text.encode("latin-1"))
                self.stack.append(made)
            case "BUILD":
                (state,) = self._pop_last(1)
                self._top(Call).state = state
            case _:
                raise ValueError(f"it has {name}, which no dataset needs")

    def _count_value(self, value: T) -> T:
        """The value, counted: what is kept can be asked for again and again, and would fill the memory."""
        self.left -= len(value)
        if self.left < 0:
            raise ValueError("it makes more than it has")
        return value

    def _pop_last(self, count: int) -> list[Any]:
        if len(self.stack) < count + (self.marks[-1] if self.marks else 0):
            raise ValueError("it takes more than it has")
        return self._pop_from(len(self.stack) - count)

    def _pop_to_mark(self) -> list[Any]:
        return self._pop_from(self.marks.pop())

    def _pop_from(self, start: int) -> list[Any]:
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"it treats a {type(self.stack[-1]).__name__} as a {kind.__name__}")
        return self.stack[-1]
