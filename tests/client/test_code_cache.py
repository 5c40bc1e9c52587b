"""What this machine knows of uploads is a cache: no damage to it stops a submit."""

from pathlib import Path

import pytest

from longshore.client.code_cache import CodeCache
from tests.support.nobody import folder_of_nobody


@pytest.mark.parametrize("damage", ["text", "header"])
@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_a_damaged_file_is_forgotten_also_where_it_cannot_be_removed(damage: str, mode: int):
    with folder_of_nobody() as folder:
        path = folder / "state/code.sqlite"
        of = Path("/x")
        with CodeCache(path) as cache:
            cache.keep_contents(of, [("a", "look", "sha")], [])
            assert cache.contents(of) == {"a": ("look", "sha")}
        content = path.read_bytes()
        path.write_bytes(b"no database" * 99 if damage == "text" else content[:100])
        path.parent.chmod(mode)
        for _ in range(2):
            with CodeCache(path) as cache:
                cache.keep_contents(of, [("b", "look", "sha")], ["a"])
                assert cache.contents(of) == {"b": ("look", "sha")}
        path.parent.chmod(0o755)
