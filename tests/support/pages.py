"""The fenced blocks of the documents, and what the comment before each says of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from markdown_it import MarkdownIt

from tests.support.local_stack import ROOT

FOLDERS = (".", "docs", "docs/decisions", "deploy", "examples", "benchmarks")
RUN = frozenset({"console", "sh", "bash", "python", "yaml"})
"""Languages whose blocks are run, or say why they are not."""
WITH_REASON = ("not run", "output varies", "numbers vary", "any order")
WITH_PATH = ("file", "from")
ALONE = ("until Ctrl-C",)
"""What a comment before a block may say; docs/README.md, "How these pages are tested"."""


@dataclass(frozen=True)
class Command:
    line: int
    text: str
    shown: tuple[str, ...] = ()
    """Lines of output that the page shows below it."""


@dataclass(frozen=True)
class Block:
    """One fenced block, or an indented one (`language` is then None)."""

    page: str
    line: int
    language: str | None
    text: str
    marks: dict[str, str] = field(default_factory=dict)
    """What the comments straight before it say: the word, and its reason or path."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[Command, ...]:
        return tuple(_commands(self))


def pages() -> list[str]:
    """Return every page of the repository, README.md first."""
    found = {
        str(page.relative_to(ROOT))
        for folder in FOLDERS
        for page in (ROOT / folder).glob("**/*.md" if folder not in (".", "docs") else "*.md")
    }
    return sorted(found - {"CHANGELOG.md"}, key=lambda name: (name != "README.md", name))


def has_fences(page: str) -> bool:
    """Return whether a page may have fenced blocks: `blocks_of` takes a hundred times longer."""
    text = (ROOT / page).read_text()
    return "```" in text or "~~~" in text


def blocks_of(page: str, text: str | None = None) -> list[Block]:
    """Return the blocks of a page in order. Raises ValueError for a comment of no known kind."""
    tokens = MarkdownIt().parse((ROOT / page).read_text() if text is None else text)
    found: list[Block] = []
    comments: list[str] = []
    for token in tokens:
        if token.type == "html_block":
            comments += re.findall(r"<!--(.*?)-->", token.content, re.DOTALL)
            continue
        if token.type in ("fence", "code_block"):
            line = (token.map or [0])[0] + 1
            language = token.info.strip() if token.type == "fence" else None
            marks = dict(_mark(comment, f"{page}:{line}") for comment in comments)
            found.append(Block(page, line, language, token.content, marks))
        comments = []
    return found


def _mark(comment: str, where: str) -> tuple[str, str]:
    word, colon, rest = (part.strip() for part in " ".join(comment.split()).partition(":"))
    if word in ALONE and not colon:
        return word, ""
    if word not in (*WITH_REASON, *WITH_PATH):
        raise ValueError(f"{where}: nobody knows the comment <!--{comment}-->")
    if len(rest) < (8 if word in WITH_REASON else 1):
        raise ValueError(f"{where}: <!--{comment}--> gives no reason")
    return word, rest


def _commands(block: Block) -> Iterator[Command]:
    """Yield what stands behind each `$ `, with the lines that a backslash continues."""
    text, line, shown, going_on = "", 0, list[str](), False
    for number, each in enumerate(block.text.splitlines(), block.line + 1):
        if going_on:
            text, going_on = f"{text}\n{each}", each.endswith("\\")
        elif each.startswith("$ "):
            if text:
                yield Command(line, text, tuple(shown))
            text, line, shown, going_on = each[2:], number, [], each.endswith("\\")
        elif not text:
            raise ValueError(f"{block.page}:{number}: no `$ ` before the output of a command")
        else:
            shown.append(each)
    if text:
        yield Command(line, text, tuple(shown))
