"""Settings: where they come from, what is said of mistakes, and that secrets stay secret."""

import json
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.models.addresses import without_secrets
from longshore.models.errors import SpecError
from longshore.models.settings import Settings
from longshore.models.settings_file import FILE_NAME, searched
from longshore.models.settings_sources import origins, unknown_variables

SECRET = "hunter2-secret"
TOKEN = "abcdef0123456789abcdef0123"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings file of a working folder of the test's own."""
    monkeypatch.delenv("LONGSHORE_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work" / FILE_NAME


def problems() -> list[str]:
    with pytest.raises(SpecError) as error:
        Settings()
    return list(error.value.problems)


def test_a_variable_goes_before_the_file_and_the_file_before_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    file.write_text('log_level = "error"\ntemporal_port = 1000\n')
    monkeypatch.setenv("LONGSHORE_TEMPORAL_PORT", "2000")
    settings = Settings()
    assert (settings.temporal_port, settings.log_level) == (2000, "ERROR")
    assert settings.node_lost_after == timedelta(seconds=12)
    found = origins(settings)
    assert found["temporal_port"] == "LONGSHORE_TEMPORAL_PORT"
    assert found["log_level"] == f"{file}:1"
    assert found["node_lost_after"] == "default"


def test_tables_write_names_that_begin_alike(file: Path):
    file.write_text('[log]\nlevel = "DEBUG"\nformat = "json"\n\n[temporal]\nui_port = 99\n')
    settings = Settings()
    assert (settings.log_level, settings.log_format, settings.temporal_ui_port) == (
        "DEBUG", "json", 99,
    )  # fmt: skip
    assert origins(settings)["temporal_ui_port"] == f"{file}:6"


def test_every_mistake_is_named_with_file_line_and_key(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    file.write_text(
        '# a remark\n[log]\nlevel = "chatty"\ncolour = """\nseveral\nlines"""\n\n'
        "[temporal]\nport = 70000\n"
    )
    monkeypatch.setenv("LONGSHORE_METRICS_ADDRESS", "here")
    assert problems() == [
        "LONGSHORE_METRICS_ADDRESS: must be a port, an IP address with a port such as "
        "0.0.0.0:9100, or off, got 'here'",
        f"{file}:3: log.level: must be DEBUG, INFO, WARNING, ERROR or CRITICAL, got 'CHATTY'",
        f"{file}:4: log.colour: no such setting",
        f"{file}:9: temporal.port: must be at most 65535, got 70000",
    ]


@pytest.mark.parametrize("given", ["8xH100,8xH200", "8xH100, 8xH200,", '["8xH100", "8xH200"]'])
def test_a_variable_gives_a_list_with_commas_or_as_json(
    given: str, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LONGSHORE_MARKET_WATCH", given)
    monkeypatch.setenv("LONGSHORE_IMAGE_FOLDERS", "/data")
    settings = Settings()
    assert settings.market_watch == ("8xH100", "8xH200")
    assert settings.image_folders == (Path("/data"),)


@pytest.mark.parametrize("given", ["[8xH100]", '"8xH100,8xH200"', '{"a": 1}'])
def test_a_list_that_is_no_json_is_named(given: str, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGSHORE_MARKET_WATCH", given)
    wants = 'must be entries with commas between them, or JSON such as ["a", "b"]'
    assert problems() == [f"LONGSHORE_MARKET_WATCH: {wants}"]


def test_a_misspelt_name_gets_a_suggestion(file: Path, monkeypatch: pytest.MonkeyPatch):
    file.write_text('log_levle = "INFO"\n')
    assert problems() == [f"{file}:1: log_levle: no such setting; did you mean log_level?"]
    monkeypatch.setenv("LONGSHORE_LOG_STOER", "x")
    monkeypatch.setenv("LONGSHORE_PROGRESS_FILE", "x")
    assert unknown_variables(Settings.model_fields) == (
        "LONGSHORE_LOG_STOER is no setting; did you mean LONGSHORE_LOG_STORE?",
    )


def test_a_value_that_is_given_twice_is_refused(file: Path):
    file.write_text('log_level = "INFO"\n[log]\nlevel = "DEBUG"\n')
    assert problems() == [f"{file}:3: log.level: is given twice, see log_level"]


def test_what_is_no_toml_is_named_with_its_place(file: Path):
    file.write_text('log_level = "INFO"\nstate_dir = here\n')
    assert problems() == [f"{file}:2: column 13: is not valid TOML: invalid value"]


def test_longshore_config_names_another_file_that_must_be_there(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file.write_text('log_level = "ERROR"\n')
    other = tmp_path / "other.toml"
    monkeypatch.setenv("LONGSHORE_CONFIG", str(other))
    assert problems() == [f"LONGSHORE_CONFIG: {other} cannot be read: no such file"]
    other.write_text("temporal_port = 5\n")
    assert (Settings().temporal_port, Settings().log_level) == (5, "INFO")


def test_the_file_is_looked_for_here_then_in_the_checkout_then_at_home(file: Path):
    here, checkout, home = searched()
    assert here == file
    assert (checkout.parent / "pyproject.toml").exists()
    assert home == Path.home() / ".config/longshore/longshore.toml"
    home.parent.mkdir(parents=True)
    home.write_text("temporal_port = 7\n")
    if not checkout.exists():
        assert Settings().temporal_port == 7


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9464", "127.0.0.1:9464"),
        (":9464", "127.0.0.1:9464"),
        ("localhost:9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("[::1]:9464", "[::1]:9464"),
        ("off", None),
    ],
)
def test_a_port_alone_is_one_of_this_machine(given: str, address: str | None):
    assert Settings(metrics_address=given).metrics_address == address


@pytest.mark.parametrize("given", ["0", "65536", "host:9464", "9464:", ""])
def test_what_is_no_address_is_refused(given: str):
    with pytest.raises(SpecError, match="health_address: must be a port"):
        Settings(health_address=given)


def test_passwords_in_urls_are_masked():
    assert without_secrets("postgresql://me:pa:ss@h:1/db?x=1") == "postgresql://me:***@h:1/db?x=1"
    assert without_secrets("s3://b/x?secret_key=abc&y=2") == "s3://b/x?secret_key=***&y=2"
    assert without_secrets("https://h/x?a=1&X-Sig=5&sig=6&MyToken=7#f") == (
        "https://h/x?a=1&X-Sig=***&sig=***&MyToken=***#f"
    )
    assert without_secrets("postgresql://me@h/db") == "postgresql://me@h/db"
    assert without_secrets("ssh://git@h/a https://h/a@b") == "ssh://git@h/a https://h/a@b"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("git+https://ghp_token@github.com/a/b", "git+https://***@github.com/a/b"),
        ("HTTPS://ghp_token:x-oauth-basic@github.com/a", "HTTPS://***@github.com/a"),
        (
            "https://h/d?X-Amz-Date=1&X-Amz-Signature=ab",
            "https://h/d?X-Amz-Date=1&X-Amz-Signature=***",
        ),
        ("https://h/d?sv=1&sig=ab%3D&design=2", "https://h/d?sv=1&sig=***&design=2"),
        (
            "https://h/d?hdnts=exp~5&auth=1&jwt=a.b&f=2",
            "https://h/d?hdnts=***&auth=***&jwt=***&f=2",
        ),
        ("https://h/d?x=Zm9vYmFyYmF6cXV4MTIzNA==", "https://h/d?x=***"),
        (
            "https://h/d?f=data/2026/a-long-name-of-a-file.csv",
            "https://h/d?f=data/2026/a-long-name-of-a-file.csv",
        ),
        (f"(https://h/d?x={TOKEN})", "(https://h/d?x=***)"),
        (f"https://h/d?x={TOKEN}, which", "https://h/d?x=***, which"),
        (f"https://h/d?x={TOKEN}. Then", "https://h/d?x=***. Then"),
        ("https://h/d?x=q83v/ty6mHZU/MhAq83vEjRW+HiQ==&y=1", "https://h/d?x=***&y=1"),
        ("https://h/d?x=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP", "https://h/d?x=***"),
        ("https://h/d?my_sig=1&auth_1=2&oauth=3", "https://h/d?my_sig=***&auth_1=***&oauth=***"),
    ],
)
def test_what_signs_a_url_and_a_user_that_may_be_a_token_are_masked(url: str, shown: str):
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    "given",
    [
        "author=me&authors=you",
        "file=dataset-2024-training-part.tar.gz",
        "file=3f2504e04f8941d39a0c0305e82c3301.parquet",
        "model=meta-llama/Llama-3.1-8B-Instruct-Q4_K_M",
        "run=3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        "since=2026-11-25T12%3A00%3A00.000Z",
        "q=how+to+train+a+model+in+2026",
    ],
)
def test_what_is_made_of_words_is_shown(given: str):
    assert without_secrets(f"https://h/d?{given}") == f"https://h/d?{given}"


@pytest.mark.parametrize("piece", [".", "1", "a1", "?", "\\", "3f2504e0-"])
def test_a_long_line_takes_no_longer_than_its_length(piece: str):
    """It would take hours if every character were looked at from every other."""
    assert without_secrets(f"https://h/d?x={piece * 2**19}").startswith("https://h/d?x=")


@pytest.mark.parametrize("parameter", [f"x={TOKEN}", "token=abc", "token=abc\\"])
def test_a_masked_url_in_json_leaves_it_json(parameter: str):
    for text in (f'"https://h/d?{parameter}" is gone', f"https://h/d?{parameter}"):
        told = without_secrets(json.dumps({"a": text}))
        assert json.loads(told)["a"].strip('"').startswith(f"https://h/d?{parameter[0]}")
        assert TOKEN not in told
        assert "abc" not in told


def test_secrets_do_not_leak(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, file: Path
):
    monkeypatch.setenv("LONGSHORE_DATABASE_URL", f"postgresql://me:{SECRET}@db/x")
    monkeypatch.setenv("LONGSHORE_AGENT_TOKEN", SECRET)
    monkeypatch.setenv("LONGSHORE_LOG_STORE", f"s3://key:{SECRET}@bucket/logs")
    settings = Settings()
    assert settings.resolve_agent_token() == SECRET
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s %r", settings, settings)
    shown = (
        repr(settings),
        str(settings),
        json.dumps(settings.model_dump(mode="json")["agent_token"]),
    )
    assert SECRET not in "".join([caplog.text, *shown])

    monkeypatch.setenv("LONGSHORE_DATABASE_URL", f"mysql://me:{SECRET}@db/x")
    file.write_text("agent_token = 12345\n")
    monkeypatch.delenv("LONGSHORE_AGENT_TOKEN")
    assert problems() == [
        "LONGSHORE_DATABASE_URL: must be like postgresql://user:password@host/database",
        f"{file}:1: agent_token: must be text",
    ]


def test_a_long_value_is_cut_in_what_is_said_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGSHORE_CONSOLE_ADDRESS", "x" * 5000)
    monkeypatch.setenv("LONGSHORE_LOG_LEVEL", "x" * 5000)
    for problem in problems():
        assert problem.endswith("…' (5,000 characters)")
        assert len(problem) < 400
