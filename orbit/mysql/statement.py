"""Compile SQLAlchemy Core once; send text and values afterwards.

SQLAlchemy owns tables and SQL; the lane owns the connection. A hot statement is compiled when its module is imported
and then costs one join of strings per call. What is lost on the way is the type system's work on results: rows come
as the driver converts them (BOOLEAN as 0 or 1, DATETIME without a zone, in UTC).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy.dialects.mysql.aiomysql import MySQLDialect_aiomysql

from orbit.mysql.literals import Plain, literal

if TYPE_CHECKING:
    from sqlalchemy.sql.base import Executable
    from sqlalchemy.sql.compiler import SQLCompiler

Parameter: TypeAlias = Plain | Sequence[Plain]
"""A value, or for an IN list a non-empty sequence of values."""


class _Dialect(MySQLDialect_aiomysql):
    """MySQL as of 8.4 in the session that connect.py sets up; a live engine would find out the same by asking."""

    supports_statement_cache = True
    server_version_info = (8, 4, 0)
    supports_for_update_of = True
    use_mysql_for_share = True
    _requires_alias_for_on_duplicate_key = True
    _support_default_function = True
    _support_float_cast = True
    _backslash_escapes = False


DIALECT: Final = _Dialect(paramstyle="format")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text with a `%s` for each of `names`, in order; a literal percent sign is `%%`.

    `constants` are values fixed when the statement was built; a call may override them. `converters` are what the
    column types do to a value on its way in, such as BOOLEAN refusing "yes".
    """

    text: str
    names: tuple[str, ...] = ()
    constants: Mapping[str, Parameter] = field(default_factory=lambda: _NOTHING, repr=False)
    converters: Mapping[str, Callable[[Any], Any]] = field(default_factory=lambda: _NOTHING, repr=False)

    def sql(self, parameters: Mapping[str, Parameter] = _NOTHING) -> bytes:
        """Give the statement with its values in place, for a session in NO_BACKSLASH_ESCAPES.

        Raises TypeError for a missing or unknown parameter or a value of an unusable type, Unsendable for a value that
        no literal can say.
        """
        values = {**self.constants, **parameters}
        wanted = set(self.names)
        if values.keys() != wanted:
            missing, unknown = sorted(wanted - values.keys()), sorted(values.keys() - wanted)
            raise TypeError(f"statement parameters: missing {missing}, unknown {unknown}")
        return (self.text % tuple(self._rendered(name, values[name]) for name in self.names)).encode()

    def _rendered(self, name: str, value: Parameter) -> str:
        convert = self.converters.get(name)
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return literal(convert(value) if convert else value)
        if not value:
            raise TypeError(f"statement parameters: {name} is an empty list")
        return ", ".join(literal(convert(item) if convert else item) for item in value)


def compile_statement(executable: Executable) -> Statement:
    """Compile a Core statement for a lane. DDL compiles to a statement without parameters."""
    compiled = executable.compile(dialect=DIALECT)  # type: ignore[attr-defined]  # - Executable does not declare it
    names = tuple(getattr(compiled, "positiontup", None) or ())
    if not names:
        return Statement(str(compiled))
    return _with_binds(compiled, names)


def _with_binds(compiled: SQLCompiler, names: tuple[str, ...]) -> Statement:
    text = str(compiled)
    constants: dict[str, Parameter] = {}
    converters: dict[str, Callable[[Any], Any]] = {}
    for name in names:
        bind = compiled.binds[name]
        # An IN list or a literal_execute value: SQLAlchemy leaves a mark that it would fill at execution.
        text = text.replace(f"__[POSTCOMPILE_{name}]", "%s")
        if not bind.required:
            constants[name] = bind.effective_value
        convert = bind.type.dialect_impl(DIALECT).bind_processor(DIALECT)
        if convert is not None:
            converters[name] = convert
    return Statement(text, names, MappingProxyType(constants), MappingProxyType(converters))


_COMPILED: WeakKeyDictionary[Executable, Statement] = WeakKeyDictionary()


def statement_of(source: Statement | Executable) -> Statement:
    """Compile a Core statement unless it is compiled already; kept for as long as the Core object lives."""
    if isinstance(source, Statement):
        return source
    statement = _COMPILED.get(source)
    if statement is None:
        statement = _COMPILED[source] = compile_statement(source)
    return statement
