"""The text below each field of a model, or member of an enum, read from the source where a person
asks for it.

Pydantic's own `use_attribute_docstrings` reads the source of each class as it is made: a third of
the time that a command takes to start, for texts that only a schema or a page shows.
"""

import ast
import inspect
import textwrap
from functools import cache

from pydantic import BaseModel


@cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field that has one, by name; inherited fields too."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= member_docs(base)
    return found


@cache
def member_docs(of: type) -> dict[str, str]:
    """Return the text below each field or member that the class itself has, by name."""
    try:
        source = inspect.getsource(of)
    except OSError:
        return {}  # a generic model with its parameters: the text is at the one without
    tree = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, below in zip(tree.body, tree.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found
