"""What `make lint` checks the types of: all of the product, whatever folder is added."""

import tomllib

from tests.support.local_stack import ROOT


def test_the_types_of_every_package_are_checked():
    """A link to a folder is none that pyright looks into, so it has to have the folder's name."""
    packages = {path.name for path in (ROOT / "longshore").iterdir() if path.is_dir()}
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    found = packages - {"__pycache__"}
    assert {"activities", "client", "models", "scheduling", "workflows"} <= found
    assert found <= set(checked["include"])
    assert {"models", "scheduling", "workflows"} <= set(checked["strict"])
    for folder in (*checked["include"], *checked["strict"]):
        assert (ROOT / folder).exists(), folder
        assert not (ROOT / folder).is_symlink(), folder
