"""Secrets of URLs that are in the query of others."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.models.addresses import without_secrets

_SECRET = "hunter2"
_WRAPPED = st.lists(st.tuples(st.sampled_from(["u", "next", "url"]), st.booleans()), max_size=4)
_TAIL = st.text(alphabet="abc-~+./=?%", max_size=6)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/d?u=https%3A%2F%2Fme:pw@in/x", "https://h/d?u=https://***@in/x"),
        ("https://h/d?u=https%3a%2f%2fme%3apw%40in", "https://h/d?u=https:%2F%2F***@in"),
        ("https://h/d?u=s3%3A%2F%2Fb%3Fkey%3Dpw&y=1", "https://h/d?u=s3:%2F%2Fb%3Fkey%3D***&y=1"),
        ("https://h/d?u=https://me:pw@in/x&y=1", "https://h/d?u=https://***@in/x&y=1"),
        ("https://h/d?u=https://in/x?token=pw&y=1", "https://h/d?u=https://in/x?token=***&y=1"),
        ("https://h/d?token=a?pw=b&y=1", "https://h/d?token=***&y=1"),
        (
            "https://h/d?authcode=a1&userauth=b2&Authz=c3",
            "https://h/d?authcode=***&userauth=***&Authz=***",
        ),
        ("https://h/d?author=ann&authors=ann", "https://h/d?author=ann&authors=ann"),
        (f"https://h/d?u={'a1B2' * 9}.Zq3", "https://h/d?u=***"),
        (f"https://h/d?u={'a1B2' * 9}.tar", f"https://h/d?u={'a1B2' * 9}.tar"),
        ("https://h/d?q=what?&u=x%20y%3F", "https://h/d?q=what?&u=x%20y%3F"),
        (
            "https://h/d?u=https%3A%2F%2Fin%2Fx%3Fa%3D1",
            "https://h/d?u=https%3A%2F%2Fin%2Fx%3Fa%3D1",
        ),
    ],
)
def test_a_url_in_the_query_of_another_is_searched(url: str, shown: str):
    assert without_secrets(url) == shown


@given(_WRAPPED, _TAIL, st.sampled_from(["https", "postgresql", "s3"]), st.booleans())
def test_no_secret_is_shown_however_its_url_is_wrapped(
    wrapped: list[tuple[str, bool]], tail: str, scheme: str, in_query: bool
):
    secret = quote(_SECRET + tail, safe="")
    url = f"{scheme}://in/x?token={secret}" if in_query else f"{scheme}://me:{secret}@in/x"
    for number, (name, escaped) in enumerate(wrapped):
        inner = quote(url, safe="") if escaped else url
        url = f"https://out{number}/r?a=1&{name}={inner}"
    told = without_secrets(f"cannot read {url}, which is away")
    assert without_secrets(told) == told
    assert told.endswith(", which is away") or in_query, "a secret ends with its parameter"
    assert all(f"out{number}" in told for number in range(len(wrapped)))
    for _ in range(len(wrapped) + 2):
        assert _SECRET not in told
        told = unquote(told)


@pytest.mark.parametrize("piece", ["%3Fa%3D", "?a=", "%25", "%3A%2F%2Fa:", "?u=s://a:"])
def test_a_long_line_of_wrapped_urls_takes_no_longer_than_its_length(piece: str):
    assert without_secrets(f"https://h/d?x={piece * 2**16}").startswith("https://h/d?x=")
