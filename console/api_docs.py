"""/docs: the REST API as a page, made from its OpenAPI description, offline."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from longshore.console.escaping import escape
from longshore.console.formats import with_code

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>REST API · Longshore</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }}
body {{ margin: 0; background: light-dark(#f5f6f8, #0e1318);
  color: light-dark(#18212b, #e4e9ee); }}
main {{ max-width: 62rem; margin: 0 auto; padding: 1.5rem; }}
h1 {{ font-size: 1.4rem; margin: 0; }}
h2 {{ font: 600 1rem ui-monospace, monospace; margin: 0; }}
section {{ background: light-dark(#fff, #161c23); border: 1px solid light-dark(#dfe3e8, #2b343f);
  border-radius: 8px; padding: 1rem 1.25rem; margin-top: 1rem; overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .92rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-top: 1px solid light-dark(#eceff2, #212932); }}
td:first-child {{ white-space: nowrap; }}
th {{ font-weight: 600; color: light-dark(#5a6774, #96a3b1); border-top: 0; }}
code, pre {{ font: .88rem ui-monospace, monospace; }} pre {{ white-space: pre-wrap; }}
a {{ color: light-dark(#1f5fbf, #7db0ff); }}
</style></head><body><main><h1>REST API</h1>
<p>{about} The description for programs is <a href="/openapi.json">/openapi.json</a>.</p>
{operations}</main></body></html>
"""


def docs_page(openapi: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI description."""
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    )
    return _PAGE.format(about=with_code(openapi["info"]["description"]), operations=operations)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    about = "".join(
        f"<p>{with_code(paragraph)}</p>"
        for paragraph in operation.get("description", "").split("\n\n")
    )
    return (
        f"<section><h2>{method.upper()} {escape(path)}</h2><p><b>{escape(operation['summary'])}"
        f"</b></p>{about}{_parameters(operation.get('parameters', []))}"
        f"<pre>{escape(_example(method, path, operation))}</pre>"
        f"{_answers(operation['responses'])}</section>"
    )


def _parameters(parameters: list[Mapping[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code>{' *' if each.get('required') else ''}</td>"
        f"<td>{with_code(each.get('description', ''))}</td>"
        f"<td><code>{escape(_limits(each))}</code></td></tr>"
        for each in parameters
    )
    return f"<table><tr><th>Parameter</th><th>Meaning</th><th>Limits</th></tr>{rows}</table>"


def _limits(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    schemas = [schema, *schema.get("anyOf", [])]
    words = {"minimum": "at least", "maximum": "at most", "default": "default", "format": "a"}
    return ", ".join(
        f"{word} {json.dumps(each[key]) if key != 'format' else each[key]}"
        for key, word in words.items()
        for each in schemas
        if each.get(key) is not None
    )


def _example(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = operation.get("parameters", [])
    for each in parameters:
        if each["in"] == "path":
            path = path.replace(f"{{{each['name']}}}", str(_examples(each)[0]))
    query = "&".join(
        f"{each['name']}={examples[0]}"
        for each in parameters
        if each["in"] == "query" and (examples := _examples(each)) and each["name"] != "provider"
    )
    address = f"$ADDRESS{path}" + (f"?{query}" if query else "")
    how = "" if method == "get" else f" -X {method.upper()}"
    if "requestBody" in operation:
        how += " -H \"Content-Type: application/json\" -d '{}'"
    return f'curl -H "Authorization: Bearer $TOKEN"{how} "{address}"'


def _examples(parameter: Mapping[str, Any]) -> Sequence[Any]:
    return parameter["schema"].get("examples") or parameter.get("examples") or ()


def _answers(responses: Mapping[str, Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{status}</td><td>{with_code(each['description'])}</td></tr>"
        for status, each in responses.items()
    )
    return f"<table><tr><th>Status</th><th>Meaning</th></tr>{rows}</table>"
