"""Gives each field of the reference its own text; an extension of griffe.

The library documents what a class is made of in a list of `Arguments` or `Attributes`:
in `X.__init__.__doc__`, written after the class, which griffe does not read; in the
docstring of the class; or in that of its `__init__`. What has no text of its own has
that of the base which declares it.
"""

import ast
import pathlib
import re
from typing import Any

import griffe


# A name may stand there with an index or with others: "- `first`, `second`: sets".
_ITEM = re.compile(r"^- ((?:`\w+`(?:, | and )?)+): ?", flags=re.MULTILINE)

# "**Arguments:** those of `NetworkFactory`, and": they are fields of that base.
_HEAD = re.compile(r"\*\*(Arguments|Attributes):\*\*( those of `\w+`(\.|, and))?")

_FIELDS = "Takes the fields above."

# Calls that declare a field and begin with its default.
_DECLARES = {
    "converted_field",
    "hyperparameter",
    "hyperparameters",
    "static_choice",
    "static_integer",
    "whole_number",
}


class FieldTexts(griffe.Extension):
    """Reads the texts of fields, and writes constructors that take these fields."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        del kwargs
        for module in _modules(pkg):
            for name, text in _constructor_texts(module).items():
                _document(module[name], text)
        classes = [
            found
            for module in _modules(pkg)
            for found in module.classes.values()
            if not found.is_alias
        ]
        for found in classes:
            _move_list(found)
            _copy_list(found)
            _forget_assigned(found)
            _add_constructor(found)
        public = _public_paths(pkg)
        inherited = [each for found in classes for each in _inherited(found, public)]
        # Once all are found, so that what is inherited is not taken for a class's own.
        for member, text in inherited:
            member.docstring = griffe.Docstring(text)


def split(text: str) -> tuple[dict[str, str], str]:
    """What a list of arguments says of each, and the text without the list."""
    texts, rest, items, listed = {}, [], None, False
    for line in text.splitlines():
        found = _ITEM.match(line) if listed else None
        if _HEAD.fullmatch(line):
            items, listed = None, True
        elif found is not None:
            items = re.findall(r"`(\w+)`", found[1])
            for item in items:
                texts[item] = line[found.end() :]
        elif items is not None and (line.startswith("  ") or not line.strip()):
            for item in items:
                texts[item] += f"\n{line.removeprefix('    ')}"
        else:
            items, listed = None, listed and not line.strip()
            rest.append(line)
    texts = {name: _sentence(each.strip()) for name, each in texts.items()}
    return texts, "\n".join(rest).strip()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _modules(package: griffe.Module) -> list[griffe.Module]:
    """A package and all modules in it, without those that it only imports."""
    inner = [each for each in package.modules.values() if not each.is_alias]
    return [package, *(each for module in inner for each in _modules(module))]


def _constructor_texts(module: griffe.Module) -> dict[str, str]:
    """The text of each `X.__init__.__doc__ = ...` of a module, by class."""
    path = module.filepath
    # A namespace has several folders instead.
    if not isinstance(path, pathlib.Path):
        return {}
    texts = {}
    for statement in ast.parse(path.read_text()).body:
        if not isinstance(statement, ast.Assign):
            continue
        target = ast.unparse(statement.targets[0])
        value = statement.value
        if target.endswith(".__init__.__doc__") and isinstance(value, ast.Constant):
            texts[target.removesuffix(".__init__.__doc__")] = str(value.value)
    return texts


def _document(documented: griffe.Object, text: str) -> None:
    texts, rest = split(text)
    _document_fields(documented, texts)
    attributes = documented.attributes
    others = {name: own for name, own in texts.items() if name not in attributes}
    lines = [f"- `{name}`: {own}" for name, own in others.items()]
    text = "\n".join(lines).replace("\n", "\n    ").replace("\n    - ", "\n- ")
    whole = f"**Arguments:**\n\n{text}\n\n{rest}" if others else rest
    if "__init__" in documented.members:
        documented["__init__"].docstring = griffe.Docstring(whole or _FIELDS)
    elif whole:
        before = documented.docstring.value if documented.docstring else ""
        documented.docstring = griffe.Docstring(f"{before}\n\n{whole}".strip())


def _move_list(documented: griffe.Class) -> None:
    """Gives the fields what a list in the docstring of their class says of each."""
    if documented.docstring is None:
        return
    texts, rest = split(documented.docstring.value)
    if all(name in documented.attributes for name in texts):
        _document_fields(documented, texts)
        documented.docstring.value = rest


def _copy_list(documented: griffe.Class) -> None:
    """Gives the fields what the docstring of `__init__` says of the same arguments."""
    constructor = documented.members.get("__init__")
    if constructor is not None and constructor.docstring is not None:
        _document_fields(documented, split(constructor.docstring.value)[0])


def _forget_assigned(documented: griffe.Class) -> None:
    """Shows no value that `__init__` gives a field, since it is no default."""
    constructor = documented.members.get("__init__")
    if constructor is None or constructor.lineno is None:
        return
    lines = range(constructor.lineno, constructor.endlineno + 1)
    for field in documented.attributes.values():
        if field.is_alias or field.lineno not in lines:
            continue
        given = str(field.value)
        if field.annotation is None and given in constructor.parameters:
            field.annotation = constructor.parameters[given].annotation
        field.value = None
        field.labels -= {"class-attribute", "instance-attribute"}


def _document_fields(documented: griffe.Class, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        field = documented.members.get(name)
        if field is not None and field.is_attribute and field.docstring is None:
            field.docstring = griffe.Docstring(text)


def _public_paths(package: griffe.Module) -> dict[str, str]:
    """Where the reference shows each class, by where it is written."""
    modules = [each for each in package.modules.values() if each.name[0] != "_"]
    return {
        member.target_path: member.path
        for module in [*modules, package]
        for member in module.members.values()
        if isinstance(member, griffe.Alias) and member.name[0] != "_"
    }


def _inherited(
    documented: griffe.Class, public: dict[str, str]
) -> list[tuple[griffe.Object, str]]:
    """The public members without a text, and what their base says of them.

    Of a method it is the first paragraph, and where to read on.
    """
    found = []
    for name, member in documented.members.items():
        hidden = name.startswith("_") and name != "__call__"
        if member.is_alias or member.docstring or hidden:
            continue
        for base in documented.mro():
            own = base.members.get(name)
            if own is None or own.docstring is None:
                continue
            is_field = member.is_attribute and "property" not in member.labels
            text = own.docstring.value
            if not is_field:
                text = text.split("\n\n")[0]
            if not is_field and base.path in public:
                path = f"{public[base.path]}.{name}"
                text += f"\n\nSee [`{base.name}.{name}`][{path}]."
            found.append((member, text))
            break
    return found


def _fields(documented: griffe.Class) -> list[griffe.Attribute]:
    """What the constructor of a module takes, in order; empty for other classes."""
    return [
        each
        for each in documented.attributes.values()
        if not each.is_alias
        and each.annotation is not None
        and "property" not in each.labels
        and "ClassVar" not in str(each.annotation)
        and not str(each.annotation).startswith("AbstractVar")
    ]


def _add_constructor(documented: griffe.Class) -> None:
    """Shows as a signature what the fields of a final class take."""
    fields = _fields(documented)
    for field in fields:
        field.value = _default(field.value)
        # Whether it has a default is seen from its signature.
        field.labels -= {"class-attribute", "instance-attribute"}
    constructor = documented.members.get("__init__")
    if constructor is not None and constructor.docstring is None:
        # That of a dataclass, or one that is written for type checkers only.
        names = {each.name for each in constructor.parameters} - {"self"}
        if names <= set(documented.all_members):
            constructor.docstring = griffe.Docstring(_FIELDS)
    abstract = documented.name.startswith(("Abstract", "_"))
    if abstract or not fields or constructor is not None:
        return
    if any("Protocol" in str(base) for base in documented.bases):
        return
    keyword = griffe.ParameterKind.positional_or_keyword
    constructor = griffe.Function(
        "__init__",
        parameters=griffe.Parameters(
            griffe.Parameter("self", kind=keyword),
            *(
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    kind=keyword,
                    default=field.value,
                )
                for field in fields
            ),
        ),
        lineno=documented.lineno,
        endlineno=documented.endlineno,
        docstring=griffe.Docstring(_FIELDS),
    )
    documented.set_member("__init__", constructor)


def _default(value: Any) -> Any:
    """The default that a declaration such as `hyperparameter(0.99, low=0)` gives."""
    if not isinstance(value, griffe.ExprCall):
        return value
    name = str(value.function).rpartition(".")[-1]
    keywords = {
        each.name: each.value
        for each in value.arguments
        if isinstance(each, griffe.ExprKeyword)
    }
    plain = [
        each for each in value.arguments if not isinstance(each, griffe.ExprKeyword)
    ]
    if name == "field":
        factory = keywords.get("default_factory")
        called = None if factory is None else griffe.ExprCall(factory, [])
        return keywords.get("default", called)
    if name == "optimizers":
        return keywords.get("default", "optax.adam")
    if name in _DECLARES:
        return plain[0] if plain else keywords.get("default")
    return value
