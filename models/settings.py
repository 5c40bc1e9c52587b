"""Settings: `LONGSHORE_*` in the environment, then `longshore.toml`, then these defaults.

Where Temporal is comes from the standard `TEMPORAL_*` variables or profile
(`temporalio.envconfig`); without any, from the local stack that `longshore up` started.
"""

import json
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from models.base import Wire
from models.errors import UnavailableError
from models.node import Liveness
from models.units import Duration


class StackInfo(Wire):
    """What the running local stack says of itself, in `stack.json` of the state folder."""

    temporal_address: str
    temporal_ui: str
    database_url: str


class Settings(BaseSettings):
    """Every setting of every Longshore process."""

    model_config = SettingsConfigDict(
        env_prefix="LONGSHORE_",
        toml_file="longshore.toml",
        extra="forbid",
        use_attribute_docstrings=True,
    )

    state_dir: Path = Field(default_factory=lambda: default_state_dir())
    """Folder of the local stack: its databases, logs, tokens and the nodes that it started."""
    database_url: SecretStr | None = None
    """PostgreSQL 16 or later, as postgresql://user:password@host/db; the local one without."""
    log_store: str | None = None
    """Where job logs go, as an fsspec URL; the folder `logs` of the state folder without."""
    agent_token: SecretStr | None = None
    """Join token of node agents; the file `agent-token` of the state folder without."""
    node_lost_after: Duration = timedelta(seconds=12)
    """A node silent for this long is lost and its jobs go back to the queue."""
    temporal_port: int = Field(default=7233, ge=1, le=65535)
    """Port of the local Temporal server."""
    temporal_ui_port: int = Field(default=8233, ge=1, le=65535)
    """Port of the local Temporal Web UI."""
    temporal_ui: str | None = None
    """Address of the Temporal Web UI; the local stack's without."""
    log_level: str = "INFO"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @cached_property
    def liveness(self) -> Liveness:
        return Liveness.within(self.node_lost_after)

    @property
    def stack_file(self) -> Path:
        return self.state_dir / "stack.json"

    def stack(self) -> StackInfo:
        """Return where the local stack is.

        Raises UnavailableError when none was started in this state folder.
        """
        try:
            return StackInfo.model_validate(json.loads(self.stack_file.read_text()))
        except FileNotFoundError:
            raise UnavailableError(
                f"no local stack in {self.state_dir}. Start one with `longshore up`, or point "
                "TEMPORAL_ADDRESS and LONGSHORE_DATABASE_URL at running servers."
            ) from None

    def resolve_database_url(self) -> str:
        return (
            self.database_url.get_secret_value()
            if self.database_url
            else self.stack().database_url
        )

    def resolve_log_store(self) -> str:
        return self.log_store or (self.state_dir / "logs").absolute().as_uri()

    def resolve_agent_token(self) -> str:
        """Return the join token. Raises UnavailableError when none is set or stored."""
        if self.agent_token:
            return self.agent_token.get_secret_value()
        try:
            return (self.state_dir / "agent-token").read_text().strip()
        except FileNotFoundError:
            raise UnavailableError(
                "no join token: set LONGSHORE_AGENT_TOKEN, or start the stack in "
                f"{self.state_dir} with `longshore up`, which makes one."
            ) from None


def default_state_dir() -> Path:
    """Return `.longshore` in a source checkout, else `~/.longshore`."""
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").exists():
        return root / ".longshore"
    return Path.home() / ".longshore"
