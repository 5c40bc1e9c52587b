"""Trains with PyTorch on however many nodes there are: torchrun starts it, and starts it again
whenever a node has left or joined.

The process on the node of rank 0 saves: every so many steps, when it is asked to (by the file
LONGSHORE_SAVE_REQUEST), and when it is stopped. That node never leaves; torchrun numbers its
workers anew each time, and its own rank 0 may be anywhere. All go on from what was saved, so the
folder is one that all nodes see. The batch of a step is the same on any number of nodes, each of
which takes its part. So the weights at the end are, but for rounding, those of a run that nobody
disturbed. On the CPU, by gloo.
"""

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

try:
    import torch  # pyright: ignore[reportMissingImports]
    import torch.distributed as dist  # pyright: ignore[reportMissingImports]
except ImportError as error:
    sys.exit(
        f"this example needs PyTorch ({error}): install it in the environment that runs the job, "
        "with `pip install torch`, or Debian's python3-torch"
    )

STOPPED = 128 + signal.SIGTERM
BATCH = 240  # examples in a step, on all nodes together
wanted = {"stop": False}


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: wanted.update(stop=True))
    # Who has lost a partner is to notice soon: torchrun starts it again.
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    saves = os.environ.get("NODE_RANK", "0") == "0" and os.environ["LOCAL_RANK"] == "0"
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = load(model, optimizer)
    if saves:
        print(f"world of {world} from step {step}", flush=True)
    truth = torch.randn(16, 1, generator=torch.Generator().manual_seed(1))
    loss = torch.zeros(())
    while step < arguments.steps:
        batch = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))
        mine = batch[rank::world]
        loss = torch.nn.functional.mse_loss(model(mine), mine @ truth, reduction="sum") / BATCH
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        if saves and (wanted["stop"] or asked_to_save() or step % arguments.save_every == 0):
            save(step, model, optimizer)
        if wanted["stop"]:
            return STOPPED
        time.sleep(arguments.step_seconds)
    if saves:
        total = sum(parameter.sum().item() for parameter in model.parameters())
        print(f"done: {step} steps, weights sum to {total:.4f}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model on any number of nodes.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.2, help="wait after each step")
    return parser.parse_args()


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what was saved last, where there is something, and return its step."""
    if not checkpoint_file().exists():
        return 0
    saved = torch.load(checkpoint_file(), map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint as one step, and say that it is there."""
    draft = checkpoint_file().with_suffix(".tmp")  # a name that no checkpoint contains
    content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, draft)
    draft.replace(checkpoint_file())
    print(f"saved, step {step}", flush=True)
    if saved := os.environ.get("LONGSHORE_SAVED"):
        with Path(saved).open("a") as said:
            said.write(f"saved, step {step}\n")


def asked_to_save() -> bool:
    """Return whether Longshore wants a checkpoint now; it takes the file away by itself."""
    path = os.environ.get("LONGSHORE_SAVE_REQUEST")
    return path is not None and Path(path).exists()


def checkpoint_file() -> Path:
    """A file of this job alone: others may save into the same folder."""
    folder = Path(os.environ.get("LONGSHORE_CHECKPOINT_DIR", "."))
    return folder / f"{os.environ.get('LONGSHORE_JOB_ID', 'alone')}.pt"


if __name__ == "__main__":
    sys.exit(main())
