"""Settings: `LONGSHORE_*` in the environment, then `longshore.toml`, then these defaults.

docs/settings.md lists them; it is made from this model. Where Temporal is comes from the standard
`TEMPORAL_*` variables or profile (`temporalio.envconfig`); without any, from the local stack that
`longshore up` started.
"""

import json
from collections.abc import Iterable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from longshore.models.addresses import Address, without_secrets
from longshore.models.base import Wire
from longshore.models.counts import Count
from longshore.models.departures import Margins
from longshore.models.errors import SpecError, UnavailableError
from longshore.models.node import ENGINE_FENCE, Liveness
from longshore.models.node import Address as HostAddress
from longshore.models.settings_file import source_checkout
from longshore.models.settings_sources import FileSource, problems_of
from longshore.models.units import GB, Duration


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _listed(value: object) -> object:
    """Return the entries of a list that was given as text, as a variable has it."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith(("[", "{", '"', "'")):
        return [entry.strip() for entry in value.split(",") if entry.strip()]
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ValueError('must be entries with commas between them, or JSON such as ["a", "b"]')
    return cast("list[object]", found)


def _of_postgresql(url: SecretStr) -> SecretStr:
    if not url.get_secret_value().startswith(("postgresql", "postgres:")):
        raise ValueError("must be like postgresql://user:password@host/database")
    return url


def _over_http(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("must be a URL such as http://127.0.0.1:4318")
    return url.rstrip("/")


def _not_all_the_time(every: timedelta) -> timedelta:
    if every < timedelta(seconds=10):
        raise ValueError("must be at least 10s")
    return every


LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)
]


class StackInfo(Wire):
    """What the running local stack says of itself, in `stack.json` of the state folder."""

    temporal_address: str
    temporal_ui: str
    database_url: str


class MarketInfo(Wire):
    """What a running simulated market says of itself, in `market.json` of the state folder."""

    url: str
    """Where it speaks both APIs: SFCompute's under its prefix, Prime Intellect's under /api/v1."""
    token: str
    """Of its one account; worth nothing anywhere else."""
    pid: int


class Settings(BaseSettings):
    """Every setting of every Longshore process."""

    model_config = SettingsConfigDict(
        env_prefix="LONGSHORE_",
        env_ignore_empty=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    state_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default_factory=lambda: default_state_dir(), examples=["~/.longshore"]
    )
    """Folder of the local stack: its databases, logs, tokens and the nodes that it started.
    Default: `.longshore` in a source checkout, else `~/.longshore`."""
    database_url: Annotated[SecretStr, AfterValidator(_of_postgresql)] | None = Field(
        default=None, examples=["postgresql://longshore:PASSWORD@db.example.com/longshore"]
    )
    """PostgreSQL 16 or later, as postgresql://user:password@host/db. Default: the local one."""
    log_store: str | None = Field(default=None, examples=["s3://bucket/logs"])
    """Store of job logs, as an fsspec URL. Default: the folder `logs` of the state folder."""
    checkpoint_store: str | None = Field(default=None, examples=["s3://bucket/checkpoints"])
    """Store of job checkpoints, as an fsspec URL that all nodes and the control worker reach.
    Default: the folder `checkpoints` of the state folder."""
    artifact_store: str | None = Field(default=None, examples=["s3://bucket/artifacts"])
    """Store of job code, as an fsspec URL that all nodes, the control worker and whoever submits
    reach. Default: the folder `artifacts` of the state folder."""
    keep_code_for: Duration = timedelta(days=7)
    """How long the code of a job that has ended stays in the artifact store."""
    upload_limit: GB = 10.0
    """Largest size of the code of a job, in GB or as text, for example 20GB."""
    keep_outputs_for: Duration = timedelta(days=30)
    """How long the outputs of a job that has ended stay in the artifact store."""
    keep_checkpoints_for: Duration = timedelta(days=7)
    """How long the checkpoints of a job that has ended stay in the checkpoint store."""
    publish_within: Duration = timedelta(minutes=10)
    """How long publishing the checkpoint of a stopped job may take, while its GPUs are held."""
    checkpoint_watch_every: Annotated[Duration, AfterValidator(_not_all_the_time)] = timedelta(
        minutes=1
    )
    """How often Longshore decides which running jobs to ask to save. `longshore setup` and
    `longshore up` pass it on to the schedule."""
    agent_token: SecretStr | None = Field(default=None, examples=["SECRET"])
    """Join token of node agents. Default: the file `agent-token` of the state folder."""
    node_lost_after: Duration = timedelta(seconds=12)
    """A node silent for this long is lost and its jobs go back to the queue."""
    reconcile_every: Annotated[Duration, AfterValidator(_not_all_the_time)] = timedelta(minutes=5)
    """How often database, workflows and agents are compared, and mended where that is safe;
    `longshore setup` and `longshore up` pass it on to the schedule."""
    node_end_margin: Duration = timedelta(seconds=30)
    """Time kept free before a node ends: jobs are asked to leave so early that their grace is
    over by then. What still runs when half of it is left is killed."""
    publish_allowance: Duration = timedelta(minutes=1)
    """Time kept free besides for each job with checkpoints, for the last one to reach its
    store."""
    spot_notice_file: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        default=None, examples=["/run/machine-ends"]
    )
    """A file that appears on a node when its machine is about to be taken away: the agent has its
    jobs leave at once. It holds the moment, such as 2026-11-20T12:00:00Z, or nothing."""
    image_folders: Annotated[
        tuple[Annotated[Path, AfterValidator(Path.expanduser)], ...],
        NoDecode, BeforeValidator(_listed),
    ] = Field(default=(), examples=[["/data", "/scratch"]])  # fmt: skip
    """Folders of a node that jobs in images may name as `workdir` or for checkpoints, with all
    below them: a JSON list, or text with commas. What a job names is seen inside, and written
    there. Without, a job in an image sees nothing of the node but a folder of its own."""
    engine_address: HostAddress = "127.0.0.1"
    """Where the engines of a node listen, and where those who ask them find them: loopback is for
    clients on that machine alone. An engine asks nobody for a password: on another address, keep
    others out by the network."""
    engine_fence: Duration = ENGINE_FENCE
    """How long the engines of a node that is cut off from the server go on before its agent ends
    them; other jobs end after 3/4 of `node_lost_after`. They stay where the agent registers again
    before its node counts as lost, and end then where they have been replaced meanwhile."""
    keep_runs: Count = Field(default=1000, ge=0)
    """Ended runs that an agent keeps on its node, with their output and private folders; older
    ones are removed when their job is over. Checkpoints stay."""
    keep_runs_for: Duration = timedelta(days=7)
    """Longest time for which it keeps them."""
    most_dag_jobs: Count = Field(default=1000, ge=1, le=10_000)
    """Most jobs of one DAG."""
    most_array_elements: Count = Field(default=100_000, ge=1, le=1_000_000)
    """Most elements of one array."""
    most_array_slots: Count = Field(default=256, ge=1, le=10_000)
    """Most elements of one array that run at a time; an array may set a lower limit."""
    node_cache: Annotated[Path, AfterValidator(Path.expanduser)] | None = Field(
        default=None, examples=["/scratch/longshore-cache"]
    )
    """Where an agent keeps the code and the environments of jobs. Default: the folder `cache` of
    its work folder. Agents of one machine and one user may share it."""
    environment_limit: Duration = timedelta(minutes=30)
    """How long the environment of a job may take to build on a node."""
    cache_evict_at: float = Field(default=0.9, gt=0, le=1)
    """Part of the disk of that folder in use above which the least recently used goes."""
    cache_evict_to: float = Field(default=0.7, gt=0, le=1)
    """And down to which."""
    cache_keep_free: GB = 50.0
    """What stays free on that disk besides, in GB or as text, for example 100GB; of a small one a
    quarter."""
    staging_share: float = Field(default=0.3, gt=0, le=1)
    """Part of the time in which a node may write to that disk what it fetches for jobs, while
    others run there."""
    uncordon_after: Duration = timedelta(minutes=1)
    """A node that takes no jobs because its disk was full takes them again once the
    agent's work folder could be written for so long."""
    temporal_port: Count = Field(default=7233, ge=1, le=65535)
    """Port of the local Temporal server."""
    temporal_ui_port: Count = Field(default=8233, ge=1, le=65535)
    """Port of the local Temporal Web UI."""
    temporal_ui: str | None = Field(default=None, examples=["https://temporal.example.com"])
    """Address of the Temporal Web UI. Default: that of the local stack."""
    log_level: LogLevel = "INFO"
    """Lowest level that the control worker and the agents log."""
    log_format: Literal["text", "json"] = "text"
    """How they log: lines for people, or one JSON object a line."""
    metrics_address: Address = Field(default=None, examples=[9464])
    """Where a control worker or an agent serves Prometheus metrics at /metrics: a port of this
    machine alone, or HOST:PORT. Each process needs one of its own."""
    health_address: Address = Field(default=None, examples=["0.0.0.0:8086"])
    """Where a control worker or an agent answers /healthz: a port of this machine alone, or
    HOST:PORT. Each process needs one of its own."""
    otlp_endpoint: Annotated[str, AfterValidator(_over_http)] | None = Field(
        default=None, examples=["http://127.0.0.1:4318"]
    )
    """Where traces go, as the URL of an OpenTelemetry collector that takes OTLP over HTTP;
    /v1/traces is added. Needs the extra `otel`."""

    market: Literal["off", "simulated", "real"] = "simulated"
    """Which markets may be talked to: none, simulated ones on this machine alone, or real ones,
    where money is spent."""
    sfcompute_url: Annotated[str, AfterValidator(_over_http)] = "https://api.sfcompute.com"
    """Address of San Francisco Compute."""
    sfcompute_prefix: str = "/preview/v2"
    """Path of its API, which may move to /v2."""
    sfcompute_token: SecretStr | None = Field(default=None, examples=["SECRET"])
    """Token for it; it is not used without one. A running simulated market brings its own."""
    sfcompute_workspace: str | None = Field(default=None, examples=["wksp_1"])
    """Workspace in which pools for bought time are made. Default: the account's only one."""
    sfcompute_image: str | None = Field(default=None, examples=["image_1"])
    """Image of instances, with Longshore on it. Nothing is bought at a real market without one;
    at a simulated market the default is the first image."""
    sfcompute_firewall: str | None = Field(default=None, examples=["frwl_1"])
    """Firewall of instances that a gang runs on, which have public addresses. It has to let the
    ranks reach each other. Default: that of the workspace."""
    prime_url: Annotated[str, AfterValidator(_over_http)] = "https://api.primeintellect.ai"
    """Address of Prime Intellect."""
    prime_token: SecretStr | None = Field(default=None, examples=["SECRET"])
    """Key for it; it is not used without one. A running simulated market brings its own."""
    prime_team: str | None = Field(default=None, examples=["TEAM_ID"])
    """Team that pods belong to. Default: none, they are personal."""
    prime_template: str | None = Field(default=None, examples=["TEMPLATE_ID"])
    """Template of pods, with Longshore on it, that runs the script in LONGSHORE_STARTUP (base64)
    when it starts. Nothing is bought at a real market without one; at a simulated market any name
    will do."""
    market_watch: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ("8xH100",)
    """Instance types whose books are stored over time: a JSON list, or text with commas, for
    example 8xH100,8xH200."""
    market_watch_every: Annotated[Duration, AfterValidator(_not_all_the_time)] = timedelta(
        minutes=1
    )
    """How often; `longshore setup` and `longshore up` pass it on to the schedule."""
    market_keep: Duration = timedelta(days=90)
    """For how long; what is older than a day is thinned out to one book an hour."""
    market_list_lag: Duration = timedelta(minutes=1)
    """How long a market's list may lack what was just made. After an order whose answer was lost,
    at a market without idempotency keys, nothing is ordered again before that."""
    buying_every: Duration = timedelta(seconds=15)
    """How often at most the markets are asked for a pool whose jobs wait."""

    console_address: Address = Field(
        default="127.0.0.1:8484", examples=["0.0.0.0:8484"], validate_default=True
    )
    """Address of the web pages and the REST API: a port of this machine alone, or HOST:PORT."""
    console_token: SecretStr | None = Field(default=None, examples=["SECRET"])
    """Bearer token of the REST API and the pages. Default: the file `console-token` of the state
    folder."""

    @model_validator(mode="wrap")
    @classmethod
    def _say_where(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Turn what pydantic finds into lines that name the variable, or file, line and key."""
        try:
            return handler(data)
        except ValidationError as error:
            problems = problems_of(error, cls.model_fields)
        raise SpecError("settings", problems)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, FileSource(settings_cls)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, without_secrets(value) if isinstance(value, str) else value

    @cached_property
    def liveness(self) -> Liveness:
        return Liveness.within(self.node_lost_after)

    @property
    def margins(self) -> Margins:
        return Margins(end=self.node_end_margin, publish=self.publish_allowance)

    @property
    def stack_file(self) -> Path:
        return self.state_dir / "stack.json"

    @property
    def market_file(self) -> Path:
        return self.state_dir / "market.json"

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

    def resolve_checkpoint_store(self) -> str:
        return self.checkpoint_store or (self.state_dir / "checkpoints").absolute().as_uri()

    def resolve_artifact_store(self) -> str:
        return self.artifact_store or (self.state_dir / "artifacts").absolute().as_uri()

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

    def resolve_console_token(self) -> str:
        """Return the console's token. Raises UnavailableError when none is set or stored."""
        if self.console_token:
            return self.console_token.get_secret_value()
        try:
            return (self.state_dir / "console-token").read_text().strip()
        except FileNotFoundError:
            raise UnavailableError(
                "no console token: set LONGSHORE_CONSOLE_TOKEN, or start the console with "
                f"`longshore up` or `longshore console`, which make one in {self.state_dir}."
            ) from None


def default_state_dir() -> Path:
    """Return `.longshore` in a source checkout, else `~/.longshore`."""
    root = source_checkout()
    return root / ".longshore" if root else Path.home() / ".longshore"
