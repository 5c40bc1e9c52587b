"""What of a JSON Schema has no bound."""

from collections.abc import Iterator
from typing import Any


def boundless(
    schema: dict[str, Any], defs: dict[str, Any], path: str = "", *, numbers: bool = False
) -> Iterator[str]:
    """Yield the place of each text without a longest form, and list or mapping without a most;
    of `numbers`, where they are asked for, those without a least or a most."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from boundless(defs[name], defs, path, numbers=numbers)
    kind = schema.get("type", ())
    if "string" in kind and not {"maxLength", "enum", "const", "format"} & schema.keys():
        yield f"{path} (text)"
    if numbers and kind in ("integer", "number"):
        least, most = ({name, f"exclusive{name.title()}"} for name in ("minimum", "maximum"))
        if not (least & schema.keys() and most & schema.keys()):
            yield f"{path} (number)"
    if kind == "array" and "maxItems" not in schema:
        yield f"{path} (list)"
    free = {"additionalProperties", "patternProperties"} & {key for key in schema if schema[key]}
    if kind == "object" and (free or "properties" not in schema):
        names = schema.get("propertyNames", {})
        names = defs[names["$ref"].rpartition("/")[2]] if "$ref" in names else names
        if "maxProperties" not in schema and "enum" not in names:
            yield f"{path} (mapping)"
        if not {"maxLength", "enum"} & names.keys():
            yield f"{path} (names)"
    forms = [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    values = [schema.get(key) for key in ("items", "additionalProperties")]
    forms += [each for each in values if isinstance(each, dict)]  # True: any value
    for form in (*forms, *schema.get("patternProperties", {}).values()):
        yield from boundless(form, defs, path, numbers=numbers)
    for name, each in schema.get("properties", {}).items():
        yield from boundless(each, defs, f"{path}.{name}", numbers=numbers)
