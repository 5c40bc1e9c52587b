"""What the processes of jobs write down of themselves, and whether two of a job ran at once.

Each process locks a file of its job's attempt and rank for its whole life; what it starts inherits
the lock. So a second process that comes while anything of the first one lives, or of any rank of
another attempt, finds a lock taken, and says so. So does one whose GPU is held by another job.
Lines are ``WORD JOB ATTEMPT RANK PID NODE SECONDS`` with seconds since the machine's boot; each is
one write to a file, which no kill -9 of anything takes back.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from longshore.models.job import JobSpec

_BEGIN = """
say() { read -r up _ < /proc/uptime; \
echo "$1 $LONGSHORE_JOB_ID $LONGSHORE_ATTEMPT ${NODE_RANK:-0} $$ \
$LONGSHORE_NODE_ID $up" >> "$JOURNAL/lines"; }
exec 9>> "$JOURNAL/$LONGSHORE_JOB_ID.$LONGSHORE_ATTEMPT.${NODE_RANK:-0}.lock"
flock --nonblock 9 || say TWICE
for other in "$JOURNAL/$LONGSHORE_JOB_ID".*.lock; do
  case "$other" in "$JOURNAL/$LONGSHORE_JOB_ID.$LONGSHORE_ATTEMPT."*) continue ;; esac
  flock --shared --nonblock "$other" true || say TWICE
done
fd=3
IFS=,
for gpu in ${CUDA_VISIBLE_DEVICES-}; do
  unset IFS
  [ "$fd" -lt 9 ] || break
  eval "exec $fd>> \\"\\$JOURNAL/$LONGSHORE_NODE_ID.$gpu.gpu\\""
  flock "$HOLD_GPU" --nonblock "$fd" || say BUSY
  fd=$((fd + 1))
done
unset IFS
say start
"""
"""A plain shell has names for ten files: of a job's GPUs on a node it locks the first six."""
SLEEP = """
[ "$LONGSHORE_ATTEMPT" -gt 1 ] || sleep "$MORE_AT_FIRST"
sleep "$SECONDS_TO_RUN"
"""
SAVES = """
until_up() { read -r now _ < /proc/uptime; [ "${now%.*}" -ge "$1" ]; }
read -r now _ < /proc/uptime
over=$((${now%.*} + ${SECONDS_TO_RUN%.*}))
until until_up "$over"; do
  [ ! -e "$LONGSHORE_SAVE_REQUEST" ] || echo saved >> "$LONGSHORE_SAVED"
  sleep 0.1
done
"""
"""Runs so long, and saves when it is asked to."""
_END = """
say end
"""


class Line(NamedTuple):
    word: str
    job_id: str
    attempt: int
    rank: int
    pid: int
    node: str
    at: float
    """Seconds since boot."""


class Journal:
    """The journal of all jobs of a fleet; every machine is this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def job(
        self,
        name: str,
        seconds: float = 0.2,
        more_at_first: float = 0,
        work: str = SLEEP,
        env: Mapping[str, object] | None = None,
        **fields: object,
    ) -> JobSpec:
        """Return a job of one GPU that runs so long, and is tried again as often as needed.

        `work` is the shell script between its first and its last line in the journal.
        """
        whole = fields.get("milli", 1000) == 1000
        return JobSpec.model_validate(
            {
                "name": name,
                "command": f"{_BEGIN}{work}{_END}",
                "cpus": 0.05,
                "ram": 0.05,
                "stop_grace": 2,
                "retry": {"node": {"max_retries": None, "backoff": 0.2, "max_backoff": 1}},
                "env": {
                    "JOURNAL": str(self.folder),
                    "SECONDS_TO_RUN": seconds,
                    "MORE_AT_FIRST": more_at_first,
                    "HOLD_GPU": "--exclusive" if whole else "--shared",
                    **(env or {}),
                },
                **fields,
            }
        )

    def lines(self) -> list[Line]:
        try:
            text = (self.folder / "lines").read_text()
        except FileNotFoundError:
            return []
        found: list[Line] = []
        for line in text.splitlines():
            word, job_id, attempt, rank, pid, node, at = line.split()
            found.append(Line(word, job_id, int(attempt), int(rank), int(pid), node, float(at)))
        return found

    def running(self, job_id: str) -> bool:
        """Return whether a process of the job has started that has not come to its end."""
        mine = [line.word for line in self.lines() if line.job_id == job_id]
        return bool(mine) and mine[-1] == "start"

    def by_job(self) -> Mapping[str, list[Line]]:
        """Return the lines of each job; no line of any other."""
        found: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.lines():
            found[line.job_id].append(line)
        return found


def violations(mine: Sequence[Line]) -> list[str]:
    """Return where two processes of a job ran at once, an attempt was started twice, or a GPU was
    another job's.

    `mine` are the lines of one job, in their order.
    """
    problems = [f"{line} ran beside another" for line in mine if line.word == "TWICE"]
    problems += [f"{line} had a GPU that was held" for line in mine if line.word == "BUSY"]
    starts: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in mine:
        if line.word == "start":
            starts[line.attempt, line.rank].append(line)
    problems += [f"attempt started twice: {many}" for many in starts.values() if len(many) > 1]
    for end in (line for line in mine if line.word == "end"):
        later = [s for many in starts.values() for s in many if s.attempt > end.attempt]
        problems += [f"{s} began before {end}" for s in later if s.at < end.at]
    return problems


def ended(mine: Sequence[Line], attempt: int, *, in_place: bool = False) -> bool:
    """Return whether every process of an attempt of a job came to its own end; of a job that
    changes its size `in_place`, that of rank 0: others may have left it."""
    ranks: dict[str, set[int]] = {"start": set(), "end": set()}
    for line in mine:
        if line.attempt == attempt and line.word in ranks:
            ranks[line.word].add(line.rank)
    if in_place:
        return 0 in ranks["end"]
    return bool(ranks["end"]) and ranks["end"] == ranks["start"]
