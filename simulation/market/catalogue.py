"""What is traded at the simulated exchange: nodes, most of eight GPUs, by region."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class SKU:
    """A kind of node. Properties are those that the exchange publishes."""

    id: str
    alias: str
    accelerator: str
    vram_gb: int
    region: str
    zone: str
    mean_cents: int
    """Around this the price of a GPU-hour moves, in cents."""
    rdma: str | None = "infiniband"
    public: bool = True
    """Its machines may have public addresses."""
    vcpus: int = 192
    memory: int = 2048 * GIB
    storage: int = 12 * 2**40
    gpus: int = 8
    audience: str | None = None
    """Whom it is for, where it is not for everybody: nobody here may order it then."""

    @property
    def hardware(self) -> str:
        """What an agent on such a node says that it has, such as ``8xH100-80GB``."""
        return f"{self.gpus}x{self.accelerator.upper()}-{self.vram_gb}GB"

    @property
    def properties(self) -> Mapping[str, tuple[str | int | bool, str]]:
        """Value and display value by key."""
        found: dict[str, tuple[str | int | bool, str]] = {
            "region": (self.region, self.region.replace("-", " ").title()),
            "availability_zone": (self.zone, self.zone),
            "accelerator": (self.accelerator, self.accelerator.upper()),
            "form_factor": ("sxm", "SXM"),
            "num_accelerators": (self.gpus, str(self.gpus)),
            "num_vcpus": (self.vcpus, str(self.vcpus)),
            "memory": (self.memory, f"{self.memory // GIB} GiB"),
            "local_storage": (self.storage, f"{self.storage // 2**40} TiB"),
            "supports_public_ipv4": (self.public, "Yes" if self.public else "No"),
        }
        if self.rdma:
            found["rdma_type"] = (self.rdma, self.rdma.title())
        return found

    def meets(self, requirements: Mapping[str, Sequence[str]]) -> bool:
        """Return whether every key has one of the wanted values, whatever their case."""
        properties = self.properties
        return all(
            key in properties
            and str(properties[key][0]).casefold() in {value.casefold() for value in values}
            for key, values in requirements.items()
        )


SKUS = (
    SKU("isku_h100a", "alder", "h100", 80, "us-west", "us-west-1a", 200),
    SKU("isku_h100b", "birch", "h100", 80, "us-east", "us-east-2b", 195),
    SKU("isku_h100c", "cedar", "h100", 80, "eu-north", "eu-north-1a", 185, rdma=None,
        public=False),
    SKU("isku_h200a", "elm", "h200", 141, "us-west", "us-west-1b", 255),
    SKU("isku_h200b", "fir", "h200", 141, "iceland", "iceland-1a", 240),
    SKU("isku_b200a", "hazel", "b200", 180, "us-east", "us-east-2c", 375),
    SKU("isku_a100a", "larch", "a100", 80, "us-central", "us-central-1a", 120, rdma="roce"),
)  # fmt: skip
