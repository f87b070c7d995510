"""The files of a project, and what a name in one of them stands for in the others.

Files are parsed when they are first asked for. What cannot be known without running the program
(`getattr`, a function's parameter, `__getattr__` of a module) stands for nothing.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from .layout import Place, Tree
from .module import Binding, FunctionNode, ImportedFrom, Module, Scope, Use, read_module

PRODUCT: Final = "dever_sql"

_MAX_DEPTH: Final = 40


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something in a file of the project: the module itself, or a dotted name below it."""

    module: Module
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A directory of the project without `__init__.py`."""

    directory: Path


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that is not in the project, by its dotted name: `datetime.datetime`."""

    name: str


@dataclass(frozen=True, slots=True)
class Local:
    """A value, class or function inside a function: no other file can name it."""

    binding: Binding
    path: tuple[str, ...] = ()


Thing: TypeAlias = Symbol | Namespace | Outside | Local

UNKNOWN: Final = object()
"""The value of an expression that is no constant."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that is not Python, and where."""

    path: Path
    line: int
    column: int
    what: str


class Project:
    """A tree of source files. `source` are directories that imports start from."""

    def __init__(self, root: Path, source: Sequence[Path] = ()) -> None:
        self.root = root
        self.tree = Tree(root)
        self.broken: list[Broken] = []
        self._source = [root, *source]
        self._modules: dict[Path, Module | None] = {}
        self._places: dict[Path, Place] = {}
        self._attributes: dict[tuple[Path, str], list[Thing]] = {}
        self._uses: dict[Use, list[Thing]] = {}
        self._answers: dict[object, list[Thing]] = {}
        self._questions = 0
        self._imported: dict[tuple[Path, str, int], Thing | None] = {}

    # --- files ------------------------------------------------------------------------------

    @property
    def files(self) -> list[Path]:
        """Every file that was read so far."""
        return list(self._modules)

    def module(self, path: Path) -> Module | None:
        """The module in a file; None when it cannot be read, which `broken` then tells."""
        if path not in self._modules:
            self._modules[path] = self._read(path)
        return self._modules[path]

    def use(self, module: Module) -> None:
        """Take a text for the content of its file."""
        self._modules[module.path] = module

    def place(self, module: Module) -> Place:
        place = self._places.get(module.path)
        if place is None:
            place = self._places[module.path] = self.tree.place(module.path)
        return place

    def target_prefix(self, module: Module) -> str:
        """The dotted name a module has when its topmost package is imported."""
        parts = [] if module.is_package else [module.path.stem]
        directory = module.path.parent
        while directory != directory.parent and (
            "__init__.py" in self.tree.files(directory)
            or (self.tree.is_domain(directory) and directory not in self._source)
        ):
            parts.insert(0, directory.name)
            directory = directory.parent
        return ".".join(parts)

    def _read(self, path: Path) -> Module | None:
        try:
            return read_module(path, path.read_text(encoding="utf-8-sig"))
        except SyntaxError as error:
            what, line, column = error.msg, error.lineno or 1, error.offset or 1
        except UnicodeDecodeError:
            what, line, column = "it is not UTF-8", 1, 1
        except RecursionError:
            what, line, column = "it nests too deep to be read", 1, 1
        except (OSError, ValueError) as error:
            what, line, column = str(error), 1, 1
        self.broken.append(Broken(path, line, column, what))
        return None

    # --- imports ----------------------------------------------------------------------------

    def _at(self, path: Path) -> Thing | None:
        """The module or directory at a path without its suffix."""
        if path.name in self.tree.directories(path.parent):
            if "__init__.py" in self.tree.files(path):
                module = self.module(path / "__init__.py")
                return Namespace(path) if module is None else Symbol(module)
            if f"{path.name}.py" not in self.tree.files(path.parent):
                return Namespace(path)
        if f"{path.name}.py" in self.tree.files(path.parent):
            module = self.module(path.parent / f"{path.name}.py")
            return None if module is None else Symbol(module)
        return None

    def imported(self, importer: Module, origin: ImportedFrom) -> Thing | None:
        """The module that an import statement names, without the name it takes from it."""
        key = (importer.path.parent, origin.module, origin.level)
        if key not in self._imported:
            self._imported[key] = self._find(importer, origin)
        return self._imported[key]

    def _find(self, importer: Module, origin: ImportedFrom) -> Thing | None:
        parts = origin.module.split(".") if origin.module else []
        if origin.level:
            directory = importer.path.parent
            for _ in range(origin.level - 1):
                directory = directory.parent
            return self._below(directory, parts)
        if parts[0] == PRODUCT or parts[0] in sys.stdlib_module_names:
            return Outside(origin.module)
        for directory in self._import_roots(importer):
            if self._at(directory / parts[0]) is not None:
                found = self._below(directory, parts)
                if found is not None:
                    return found
        return Outside(origin.module)

    def _below(self, directory: Path, parts: Sequence[str]) -> Thing | None:
        if not parts:
            if "__init__.py" not in self.tree.files(directory):
                return Namespace(directory)
            module = self.module(directory / "__init__.py")
            return Namespace(directory) if module is None else Symbol(module)
        return self._at(directory.joinpath(*parts))

    def _import_roots(self, importer: Module) -> Iterator[Path]:
        directory = importer.path.parent
        while directory.is_relative_to(self.root):
            if "__init__.py" not in self.tree.files(directory):
                yield directory
            directory = directory.parent
        yield from self._source

    # --- names ------------------------------------------------------------------------------

    def of_use(self, module: Module, use: Use) -> list[Thing]:
        """What a dotted name stands for; several things when imports depend on a condition."""
        if use not in self._uses:
            with self._asking():
                self._uses[use] = self.of_chain(module, use.scope, use.chain)
        return self._uses[use]

    def of_node(self, module: Module, node: ast.expr) -> list[Thing]:
        """What an expression stands for when it is a dotted name, else nothing."""
        use = module.use_at.get(node)
        return [] if use is None else self.of_use(module, use)

    def of_chain(
        self, module: Module, scope: Scope, chain: Sequence[str], depth: int = 0
    ) -> list[Thing]:
        """Like `of_use`, for a chain of names in a scope."""
        if depth > _MAX_DEPTH:
            return []
        with self._asking():
            return self._of_chain(module, scope, chain, depth)

    def _of_chain(
        self, module: Module, scope: Scope, chain: Sequence[str], depth: int
    ) -> list[Thing]:
        things: list[Thing]
        bindings = scope.find(chain[0])
        if bindings is None:
            things = self._from_stars(module, chain[0], depth)
            if not things and hasattr(builtins, chain[0]):
                things = [Outside(f"builtins.{chain[0]}")]
        else:
            key = id(bindings)
            if key not in self._answers:
                self._answers[key] = []
                self._answers[key] = self._of_bindings(module, chain[0], bindings, depth)
            things = self._answers[key]
        for name in chain[1:]:
            things = [found for thing in things for found in self._step(thing, name, depth)]
        return things

    def attribute(self, module: Module, name: str, depth: int = 0) -> list[Thing]:
        """What `name` stands for in a module of the project, seen from outside."""
        key = (module.path, name)
        if key in self._attributes:
            return self._attributes[key]
        with self._asking():
            if key not in self._answers:
                self._answers[key] = []  # what modules that import each other find meanwhile
                self._answers[key] = self._attribute(module, name, depth)
            things = self._answers[key]
        if not self._questions:  # inside a circle the answer may be half of it
            self._attributes[key] = things
        return things

    @contextmanager
    def _asking(self) -> Generator[None]:
        """Names lead to names, in circles too: each is followed once for a question."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._answers.clear()

    def _attribute(self, module: Module, name: str, depth: int) -> list[Thing]:
        bindings = module.scope.names.get(name)
        if bindings is not None:
            things = self._of_bindings(module, name, bindings, depth)
            if things:
                return things
        things = self._from_stars(module, name, depth)
        if things:
            return things
        if module.is_package:
            found = self._at(module.path.parent / name)
            return [] if found is None else [found]
        return []

    def of_import(self, module: Module, binding: Binding, depth: int = 0) -> list[Thing]:
        """What an import binds its name to."""
        assert binding.origin is not None
        source = self.imported(module, binding.origin)
        if source is None:
            return []
        name = binding.origin.name
        if name is None or name == "*":
            return [source]
        return self._step(source, name, depth)

    def is_bound(self, module: Module, scope: Scope, name: str) -> bool:
        """Whether a name stands for anything, known or not."""
        return (
            scope.find(name) is not None
            or hasattr(builtins, name)
            or bool(self._from_stars(module, name, 0))
            or any(not isinstance(self._star(module, star), Symbol) for star in module.stars)
        )

    def is_checker_only(self, module: Module, scope: Scope, name: str) -> bool:
        """Whether only imports under `if TYPE_CHECKING:` bring a name."""
        bindings = scope.find(name)
        if bindings is not None:
            return all(binding.type_checking for binding in bindings)
        if hasattr(builtins, name) or not self._from_stars(module, name, 0):
            return False
        return all(
            star.type_checking
            for star in module.stars
            if not isinstance(self._star(module, star), Symbol)  # it may bring anything
            or self._from_star(module, star, name, 0)
        )

    def _of_bindings(
        self, module: Module, name: str, bindings: Sequence[Binding], depth: int
    ) -> list[Thing]:
        things: list[Thing] = []
        for binding in bindings:
            if binding.kind in ("module", "from"):
                things += self.of_import(module, binding, depth + 1)
            elif binding.kind == "alias" and binding.value is not None:
                use = module.use_at.get(binding.value)
                if use is not None and use.chain != (name,):
                    things += self.of_chain(module, use.scope, use.chain, depth + 1)
            elif binding.kind in ("definition", "value"):
                is_top = name in module.scope.names and binding in module.scope.names[name]
                things.append(Symbol(module, (name,)) if is_top else Local(binding))
        return list(dict.fromkeys(things))

    def _step(self, thing: Thing, name: str, depth: int) -> list[Thing]:
        match thing:
            case Symbol(module, ()):
                return self.attribute(module, name, depth + 1)
            case Symbol(module, path):
                return [Symbol(module, (*path, name))]
            case Local(binding, path):
                return [Local(binding, (*path, name))]
            case Outside(outside):
                return [Outside(f"{outside}.{name}")]
            case Namespace(directory):
                found = self._at(directory / name)
                return [] if found is None else [found]

    def _from_stars(self, module: Module, name: str, depth: int) -> list[Thing]:
        things: list[Thing] = []
        if depth > _MAX_DEPTH:
            return things
        for star in module.stars:
            things += self._from_star(module, star, name, depth)
        return list(dict.fromkeys(things))

    def _from_star(self, module: Module, star: Binding, name: str, depth: int) -> list[Thing]:
        source = self._star(module, star)
        if isinstance(source, Symbol) and _is_exported(source.module, name):
            return self.attribute(source.module, name, depth + 1)
        if isinstance(source, Outside) and name in _STARRED.get(source.name, ()):
            return [Outside(f"{source.name}.{name}")]
        return []

    def _star(self, module: Module, star: Binding) -> Thing | None:
        return None if star.origin is None else self.imported(module, star.origin)

    # --- what stands behind a name ----------------------------------------------------------

    def bindings(self, thing: Thing) -> list[Binding]:
        """The statements that made a name: definitions and values."""
        match thing:
            case Symbol(module, (name,)):
                return module.scope.names.get(name, [])
            case Local(binding, ()):
                return [binding]
            case _:
                return []

    def definition(self, thing: Thing) -> FunctionNode | ast.ClassDef | None:
        """The one function or class that a name stands for."""
        found = self.bindings(thing)
        node = found[0].node if len(found) == 1 else None
        is_one = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        return node if is_one else None

    def constant(self, module: Module, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression of literals, constants and arithmetic; else UNKNOWN."""
        if depth > _MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._arithmetic(module, node, depth + 1)
        values = [
            self.constant(_module_of(module, thing), binding.value, depth + 1)
            for thing in self.of_node(module, node)
            for binding in self.bindings(thing)
            if binding.kind == "value" and binding.value is not None
        ]
        return values[0] if len(values) == 1 else UNKNOWN

    def _arithmetic(self, module: Module, node: ast.UnaryOp | ast.BinOp, depth: int) -> Any:
        sides = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        values = [self.constant(module, side, depth) for side in sides]
        if not all(type(value) in (int, float) and abs(value) < 10**12 for value in values):
            return UNKNOWN
        match node.op, values:
            case ast.USub(), [value]:
                return -value
            case ast.Add(), [left, right]:
                return left + right
            case ast.Sub(), [left, right]:
                return left - right
            case ast.Mult(), [left, right]:
                return left * right
            case _:
                return UNKNOWN


PUBLIC_NAMES: Final = frozenset(
    {
        "AsyncStore",
        "Job",
        "Jobs",
        "Json",
        "ModelId",
        "Secret",
        "Store",
        "job",
        "record",
        "transaction",
    }
)
"""What a star import of the product brings along, as far as a rule asks for it."""

_STARRED: Final = {PRODUCT: PUBLIC_NAMES, "datetime": frozenset(datetime.__all__)}
"""What star imports bring along from outside the project, as far as a rule asks for it."""


def is_product(things: Sequence[Thing], name: str) -> bool:
    """Whether a name stands for `dever_sql.<name>`, wherever in the product it was taken from."""
    wanted = name.split(".")
    for thing in things:
        if isinstance(thing, Outside):
            first, *rest = thing.name.split(".")
            if first == PRODUCT and rest[-len(wanted) :] == wanted and len(rest) <= len(wanted) + 1:
                return True
    return False


def _module_of(module: Module, thing: Thing) -> Module:
    return thing.module if isinstance(thing, Symbol) else module


def _is_exported(module: Module, name: str) -> bool:
    listed = _static_all(module)
    return not name.startswith("_") if listed is None else name in listed


def _static_all(module: Module) -> frozenset[str] | None:
    bindings = module.scope.names.get("__all__", [])
    if len(bindings) != 1 or not isinstance(bindings[0].value, ast.List | ast.Tuple):
        return None
    items = bindings[0].value.elts
    if not all(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in items):
        return None
    return frozenset(str(item.value) for item in items if isinstance(item, ast.Constant))
