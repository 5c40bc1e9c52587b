"""The plain loop of `benchmarks.decisions` once more, as a scan of numpy over all nodes."""

from datetime import datetime

import numpy as np

from longshore.models.job_request import JobRequest
from longshore.models.node import Node


class PlainScan:
    """Nodes of 8 GPUs as columns; each job is put to all of them at once.

    It answers what the loop answers: node and first free GPUs by the document's score. No reasons,
    no reservations, no alternatives.
    """

    def __init__(self, nodes: list[Node], now: datetime) -> None:
        self.ids = [node.id for node in nodes]
        self.fast = np.array([node.tier == "FAST" for node in nodes])
        self.left = np.array(
            [
                (node.expires_at - now).total_seconds() if node.expires_at else np.inf
                for node in nodes
            ]
        )
        self.cpus = np.array([node.cpus - node.cpus_used for node in nodes])
        self.ram = np.array([node.ram - node.ram_used for node in nodes])
        self.free = np.array([[gpu.job_id is None for gpu in node.gpus] for node in nodes])
        self.room = np.array([[gpu.vram - gpu.vram_used for gpu in node.gpus] for node in nodes])
        self.total = np.array([sum(gpu.vram for gpu in node.gpus) for node in nodes])
        self.used = np.array([sum(gpu.vram_used for gpu in node.gpus) for node in nodes])
        self.large = np.array([node.provider == "sfcompute" for node in nodes])
        self.small = np.array([node.provider == "prime" for node in nodes])

    def place(self, job: JobRequest) -> tuple[str, str | None, tuple[int, ...]]:
        """Return the job, its node if it gets one, and its GPUs there, which are taken then."""
        seconds = job.expected_duration.total_seconds()
        possible = self.free & (self.room >= job.vram_per_gpu)
        nth = possible.cumsum(axis=1)
        fits = (nth[:, -1] >= job.gpus) & (self.fast == (job.tier == "FAST"))
        fits &= (self.left >= seconds + 300) & (self.cpus >= job.cpus) & (self.ram >= job.ram)
        if not fits.any():
            return job.id, None, ()
        span = (nth >= job.gpus).argmax(axis=1) - possible.argmax(axis=1)
        gap = (span - job.gpus + 1) / (job.gpus - 1) if job.gpus > 1 else 0.0
        short = self.left < 2 * seconds
        penalty = np.where(short, 1 - self.left / (2 * seconds), 0.0)
        bonus = 0.2 * self.large if job.gpus >= 8 else 0.1 * self.small
        use = np.minimum((self.used + job.vram_per_gpu * job.gpus) / self.total, 1.0)
        score = np.where(fits, use - 0.5 * gap - 0.3 * penalty + 0.2 * bonus, -np.inf)
        best = int(score.argmax())
        taken = np.flatnonzero(possible[best])[: job.gpus]
        self.free[best, taken] = False
        self.room[best, taken] -= job.vram_per_gpu
        self.used[best] += job.vram_per_gpu * job.gpus
        self.cpus[best] -= job.cpus
        self.ram[best] -= job.ram
        return job.id, self.ids[best], tuple(taken.tolist())
