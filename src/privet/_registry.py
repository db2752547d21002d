"""Names for things: one spelling serves Python, TOML and the command line.

`name:key=value,...` makes a registered thing; `my.module:Thing` makes a user's own by its address, and
`my.module:Thing:key=value` gives it options. A mapping `{"kind": "name", "key": value}` (TOML) says the same.
A value is a number (`0.3`, `1e-3`, `256/60000`), `true`, `false`, or a word; double quotes keep a word as it is.

Other distributions bring more by entry points, and `privet.published` has what papers print without a proof that covers
it. Both are read here alone, and not before a name is asked for that is not there.
"""

import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from privet._check import suggestion
from privet._text import one_line, shorten
from privet.errors import InvalidValue, MissingExtra, PrivetError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


T = TypeVar("T")
Maker = Callable[..., T]
_TAKES_ANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
PAPERS = "pip install 'privet[papers]'"  # brings the papers' datasets, networks, tables and recipes


@functools.cache
def entry_points(group: str) -> "Mapping[str, EntryPoint]":
    """What the installed distributions offer in a group, by name, in the order of the names; nothing is imported."""
    from importlib.metadata import entry_points as installed  # not before it is needed: it takes time

    found: dict[str, EntryPoint] = {}
    for point in sorted(installed(group=group), key=lambda point: (point.name, point.value)):
        found.setdefault(point.name, point)
    return found


def from_entry_point(group: str, name: str, *, asked: str = "") -> Any:
    """What another distribution offers under this name; `asked` is how a user asked for it.

    Raises:
        MissingExtra: nobody does, or it cannot be imported.
    """
    point = entry_points(group).get(name)
    if point is None:
        raise MissingExtra(f"{asked or repr(name)} comes with the papers, which are not installed. Run: {PAPERS}")
    try:
        return point.load()
    except Exception as error:  # another distribution may fail in any way
        raise MissingExtra(
            f"{asked or repr(name)} comes with {point.value}, which cannot be imported: {one_line(error)}. Install it "
            "again, in the version of privet."
        ) from error


def import_published(module: str) -> Any:
    """A module of `privet.published`, which nothing else imports."""
    return importlib.import_module(f"privet.published.{module}")


@dataclass(eq=False)
class Registry(Generic[T]):
    """Makers by name, in the order they were registered.

    `needs` names the methods a user's own class must have. It is looked at before anything is called, so that
    an address in a file from elsewhere (`os:system:command=...`) is refused and not run. Without `own` there are names
    alone, and no addresses. `group` names the entry points by which other distributions bring more. `order` has the
    package's own names as they are listed; of these, a module of `privet.published` registers what is not there yet.
    """

    kind: str
    needs: tuple[str, ...] = ()
    own: bool = True
    group: str = ""
    order: tuple[str, ...] = ()
    published: str = ""
    _makers: dict[str, Maker[T]] = field(default_factory=dict, init=False, repr=False)
    _ours: frozenset[Any] = field(default=frozenset(), init=False, repr=False)

    def register(self, name: str) -> Callable[[Any], Any]:
        """Class decorator: makes the class available under `name`."""

        def keep(maker: Any) -> Any:
            theirs = f"privet.published.{self.published}"
            is_published = name in self.order and bool(self.published) and maker.__module__ == theirs
            if name in self._makers or (self._ours and name in self.order and not is_published):
                raise InvalidValue(f"{self.kind}={name!r} is registered already. Choose another name.")
            self._makers[name] = maker
            self._ours |= {maker} if is_published else frozenset()
            return maker

        return keep

    def names(self) -> list[str]:
        return list(dict.fromkeys((*self.order, *self._makers, *self._entry_points())))

    def __contains__(self, name: str) -> bool:
        return name in self._makers or name in self.order or name in self._entry_points()

    def _entry_points(self) -> "Mapping[str, EntryPoint]":
        return entry_points(self.group) if self.group else {}

    def seal(self) -> None:
        """What is registered by now is the package's own; what comes later is somebody else's, but for `published`."""
        self._ours |= frozenset(self._makers.values())

    def is_ours(self, thing: object) -> bool:
        """Whether a thing was made by a class of the package: exactly that one, since a subclass may do anything."""
        return type(thing) in self._ours

    def maker(self, name: str) -> Maker[T]:
        """The class behind a registered name or an address `my.module:Thing`."""
        if name not in self._makers and name in self.order and self.published:
            import_published(self.published)
        if name not in self._makers and name in self._entry_points():
            found = from_entry_point(self.group, name)  # its module may register it by itself
            self._makers.setdefault(name, found)
        if name in self._makers:
            return self._makers[name]
        if ":" in name and self.own:
            return self._import_class(name)
        known = self.names()
        is_whole = not self.group or any(
            point.value.startswith("privet_papers.") for point in self._entry_points().values()
        )
        hint = "" if is_whole else f" More come with the papers: {PAPERS}"
        raise InvalidValue(
            f"{self.kind}={name!r} is not known{'.' + suggestion(name, known)} "
            f"Known: {', '.join(known)}{'; or your own as my.module:Class' * self.own}.{hint}"
        )

    def make(self, name: str, /, **options: Any) -> T:
        """The thing called `name`, with its options; an unknown or missing option is named before the call."""
        maker = self.maker(name)
        parameters = inspect.signature(maker).parameters
        known = [key for key, parameter in parameters.items() if parameter.kind not in _TAKES_ANY]
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            for key in options:
                if key not in known:
                    raise InvalidValue(
                        f"{self.kind}={name!r} has no option {key!r}.{suggestion(key, known)} "
                        f"It takes: {', '.join(known) or 'none'}."
                    )
        for key in known:
            if key not in options and parameters[key].default is inspect.Parameter.empty:
                raise InvalidValue(f"{self.kind}={name!r} needs the option {key!r}. Write {name}:{key}=...")
        try:
            return maker(**options)
        except PrivetError:
            raise
        except Exception as error:  # a user's own class may fail in any way
            if name in self._makers:
                raise
            raise InvalidValue(
                f"{self.kind}={name!r} cannot be made: {one_line(error)}. Change its options, or the class."
            ) from error

    def split(self, text: str) -> tuple[str, str]:
        """`name:options` or `my.module:Thing:options` as (name, options)."""
        head, _, rest = text.strip().partition(":")
        head = head.strip()
        if not rest or head in self:
            return head, rest
        thing, _, options = rest.partition(":")
        if thing.isidentifier():
            return f"{head}:{thing}", options
        return head, rest

    def options(self, name: str, text: str) -> dict[str, Any]:
        """The options of `name:key=value,key=value` as a mapping."""
        found: dict[str, Any] = {}
        for part in split_top_level(text, ",", self.kind) if text.strip() else []:
            key, equals, given = (word.strip() for word in part.partition("="))
            if not (equals and key and given) or key in found:
                rule = f"gives {key!r} twice" if key in found else f"has {part!r}, which must read key=value"
                example = f"{name}:{next(iter(inspect.signature(self.maker(name)).parameters), 'key')}=..."
                raise InvalidValue(f"{self.kind}={shorten(f'{name}:{text}')!r} {rule}. Write {example}")
            found[key] = parse_value(given)
        return found

    def from_mapping(self, table: Mapping[str, Any]) -> T:
        """`{kind = "name", key = value}`, as a TOML table says it."""
        options = dict(table)
        name = options.pop("kind", None)
        if not isinstance(name, str):
            raise InvalidValue(f"{self.kind}={dict(table)!r} needs a kind. Add kind = '{self.names()[0]}'.")
        return self.make(name, **options)

    def to_spec(self, thing: T) -> str:
        """The text that makes an equal thing: its name or address, then the options that are not at their default."""
        name = self._name_of(type(thing))
        if not dataclasses.is_dataclass(thing):
            if inspect.signature(type(thing)).parameters:
                raise InvalidValue(f"{self.kind}={name!r} has options that cannot be read back. Make it a dataclass.")
            return name
        inherited_last = [key for cls in inspect.getmro(type(thing)) for key in inspect.get_annotations(cls)]
        options = [
            f"{field.name}={format_number(getattr(thing, field.name), name=field.name)}"
            for field in sorted(dataclasses.fields(thing), key=lambda field: inherited_last.index(field.name))
            if field.init and not _is_default(field, getattr(thing, field.name))
        ]
        return f"{name}:{','.join(options)}" if options else name

    def _name_of(self, cls: type) -> str:
        for name, maker in self._makers.items():
            if maker is cls:
                return name
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is not cls:
            raise InvalidValue(
                f"{self.kind}={cls.__qualname__!r} has no address. It is defined inside a function or a class. "
                "Move it to the top of a module."
            )
        return f"{cls.__module__}:{cls.__qualname__}"

    def _import_class(self, address: str) -> Maker[T]:
        found: Maker[T] = import_address(address, kind=self.kind, known=self.names())
        missing = [method for method in self.needs if not callable(getattr(found, method, None))]
        if self.needs and (missing or not isinstance(found, type)):
            is_class = isinstance(found, type)
            what = f"a class without {', '.join(missing)}" if is_class else f"a {type(found).__name__}"
            raise InvalidValue(
                f"{self.kind}={address!r} must be a class with {', '.join(self.needs)}(). It is {what}. Give the "
                "address of such a class, or a name."
            )
        return found


def import_address(address: str, *, kind: str, known: Iterable[str] = ()) -> Any:
    """What stands at `my.module:name`, a user's own."""
    module_name, _, attribute = address.partition(":")
    if not module_name or not attribute:
        raise InvalidValue(f"{kind}={address!r} must be an address such as my.module:name.")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's own module may fail in any way
        raise InvalidValue(
            f"{kind}={address!r} cannot be imported: {one_line(error)}. Check its name and PYTHONPATH."
            f"{suggestion(module_name, known)}"
        ) from (None if isinstance(error, ModuleNotFoundError) else error)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InvalidValue(
            f"{kind}={address!r} is not there: {module_name} has no {attribute!r}.{suggestion(attribute, dir(module))}"
        ) from None


def parse_number(text: str) -> int | float:
    """A number as a user writes it: `3`, `0.3`, `1e-3` or a fraction `256/60000`. Raises ValueError."""
    above, slash, below = text.partition("/")
    if slash:
        try:
            return float(above) / float(below)
        except ZeroDivisionError:
            raise ValueError(f"{text!r} divides by zero") from None
    decimal = float(text)
    try:
        return int(text) if abs(decimal) < 2**53 else decimal
    except ValueError:
        return decimal


def parse_value(text: str) -> int | float | bool | str:
    """An option's value: a number, true, false, or a word."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    try:
        return parse_number(text)
    except ValueError:
        return text


def format_number(given: object, *, name: str = "value") -> str:
    """The inverse of `value`; whole numbers lose their `.0`, so equal things have one spelling."""
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, int):
        return str(int(given))
    if isinstance(given, float):
        return str(int(given)) if given.is_integer() and abs(given) < 1e15 else repr(float(given))
    if isinstance(given, str) and '"' not in given:
        plain = re.fullmatch(r"[\w./-]+", given) and isinstance(parse_value(given), str)
        return given if plain else f'"{given}"'
    raise InvalidValue(f"{name}={given!r} cannot be written as text. Use a number, true, false or a word.")


def split_top_level(text: str, separator: str, kind: str) -> list[str]:
    """The stripped pieces between separators (a regular expression), except inside quotes or parentheses."""
    pieces, depth, quoted, begin = [], 0, False, 0
    for match in re.finditer(rf'["()]|{separator}', text):
        mark = match.group()
        if mark == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif mark in ("(", ")"):
            depth += 1 if mark == "(" else -1
            if depth < 0:
                break
        elif depth == 0:
            pieces.append(text[begin : match.start()].strip())
            begin = match.end()
    if quoted or depth:
        raise InvalidValue(f"{kind}={shorten(text)!r} has an unmatched quote or parenthesis. Close it.")
    return [*pieces, text[begin:].strip()]


def _is_default(field: "dataclasses.Field[Any]", given: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(field.default_factory() == given)
    return field.default is not dataclasses.MISSING and bool(field.default == given)
