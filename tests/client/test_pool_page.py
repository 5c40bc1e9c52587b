"""The page on the settings of a pool says what the command says."""

import re
from typing import Any

from longshore.client.cli import command_line
from longshore.client.pool_page import PAGE, page


def test_the_page_is_what_the_command_says():
    assert PAGE.read_text() == page(), "write it anew with `make docs`"


def test_the_page_has_a_row_for_each_option_of_pool_set():
    group: Any = command_line()
    command = group.commands["pool"].commands["set"]
    flags = [each.opts[0] for each in command.params if each.opts[0].startswith("--")]
    assert len(flags) > 20
    rows = re.findall(r"^\| `(--[a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [flag for flag in flags if flag not in ("--json", "--help")]
