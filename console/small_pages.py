"""Small pages without script: the form for the token, what leads on, what is missing."""

from urllib.parse import quote

from longshore.console.escaping import escape

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{head}
<title>{title} · Longshore</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }}
body {{ margin: 0; min-height: 100vh; display: grid; place-items: center;
  background: light-dark(#f4f6f8, #10151b); color: light-dark(#17202a, #e3e8ee); }}
main {{ width: min(24rem, calc(100vw - 3rem)); }}
h1 {{ font-size: 1.25rem; margin: 0 0 .25rem; }}
p {{ margin: 0 0 1rem; color: light-dark(#52606d, #9aa7b4); }}
label {{ display: block; font-weight: 600; margin-bottom: .25rem; }}
input, button {{ box-sizing: border-box; width: 100%; font: inherit; padding: .55rem .7rem;
  border-radius: 6px; border: 1px solid light-dark(#b8c2cc, #3a4653); }}
input {{ background: light-dark(#fff, #161d25); color: inherit; margin-bottom: .75rem; }}
button {{ background: #1f5fbf; border-color: #1f5fbf; color: #fff; font-weight: 600;
  cursor: pointer; }}
:focus-visible {{ outline: 2px solid #4c8df0; outline-offset: 2px; }}
[role=alert] {{ color: light-dark(#b42318, #ff8a80); }}
code {{ font-size: .95em; }}
</style></head><body><main>{body}</main></body></html>
"""
_FORM = """<h1>Longshore</h1>
<p>Sign in with the console's token: <code>longshore ui</code> prints a link that holds it.</p>
{refused}<form method="post" action="/login?next={target}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form>"""
_REFUSED = '<p role="alert">This is not the token. It may have been made anew since.</p>'


def login_page(target: str, *, refused: bool = False) -> str:
    """Return the form; what comes after it is `target`, a path of this console."""
    body = _FORM.format(target=escape(quote(target)), refused=_REFUSED if refused else "")
    return _PAGE.format(title="Sign in", head="", body=body)


def entering_page(target: str) -> str:
    """Return a page that goes on to `target` at once."""
    link = escape(target)
    head = f'<meta http-equiv="refresh" content="0;url={link}">'
    return _PAGE.format(
        title="Signed in", head=head, body=f'<p>Signed in. <a href="{link}">Go on</a></p>'
    )


def missing_page() -> str:
    """Return what a browser gets at an address where nothing is."""
    body = '<h1>There is nothing here</h1><p><a href="/">Go to the order book</a></p>'
    return _PAGE.format(title="Nothing here", head="", body=body)
