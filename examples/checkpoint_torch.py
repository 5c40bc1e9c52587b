"""Trains a small network with PyTorch, and survives the loss of its machine.

It saves every so many steps, when it is asked to (by the file LONGSHORE_SAVE_REQUEST), and when it
is stopped; each time it says so in LONGSHORE_SAVED, and Longshore publishes what it saved. The
next attempt goes on from there, on whatever node. On a GPU where it sees one, else on the CPU.
"""

import argparse
import hashlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

try:
    import torch  # pyright: ignore[reportMissingImports]
except ImportError as error:
    sys.exit(
        f"this example needs PyTorch ({error}): install it in the environment that runs the job, "
        "with `pip install torch`, or give the job an image that has it"
    )

STOPPED = 128 + signal.SIGTERM


def main() -> int:
    arguments = parse()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, arguments.width), torch.nn.ReLU(), torch.nn.Linear(arguments.width, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = load(model, optimizer, device)
    truth = torch.randn(32, 1, generator=torch.Generator().manual_seed(1)).to(device)
    loss = torch.zeros(())
    while step < arguments.steps:
        batch = torch.randn(256, 32, generator=torch.Generator().manual_seed(step)).to(device)
        loss = torch.nn.functional.mse_loss(model(batch), torch.tanh(batch @ truth))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if stop.is_set() or asked_to_save() or step % arguments.save_every == 0:
            save(step, model, optimizer)
            print(f"step {step}: loss {loss.item():.4f}, saved", flush=True)
            report(step, arguments.steps, f"loss {loss.item():.4f}")
        if stop.is_set():
            return STOPPED
        stop.wait(arguments.step_seconds)
    print(f"loss {loss.item():.4f} after {step} steps on {device}")
    print(f"sha256 of the weights: {digest(model)}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network with PyTorch.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--step-seconds", type=float, default=0.02, help="wait after each step")
    return parser.parse_args()


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Load what was saved last, where there is something, and return its step."""
    path = checkpoint_file()
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    print(f"attempt {os.environ.get('LONGSHORE_ATTEMPT', '?')} goes on after step {saved['step']}")
    return saved["step"]


def save(step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint as one step, and say that it is there."""
    began, path = time.monotonic(), checkpoint_file()
    draft = path.with_suffix(".tmp")  # a name that no checkpoint contains
    content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, draft)
    draft.replace(path)
    if saved := os.environ.get("LONGSHORE_SAVED"):
        with Path(saved).open("a") as said:
            said.write(f"saved, step {step}, took {time.monotonic() - began:.3f}s\n")


def digest(model: torch.nn.Module) -> str:
    """Return the same for the same weights, to the last bit."""
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.cpu().numpy().tobytes())
    return weights.hexdigest()


def asked_to_save() -> bool:
    """Return whether Longshore wants a checkpoint now; it takes the file away by itself."""
    path = os.environ.get("LONGSHORE_SAVE_REQUEST")
    return path is not None and Path(path).exists()


def checkpoint_file() -> Path:
    return Path(os.environ.get("LONGSHORE_CHECKPOINT_DIR", ".")) / "checkpoint.pt"


def report(step: int, steps: int, message: str) -> None:
    if path := os.environ.get("LONGSHORE_PROGRESS_FILE"):
        Path(path).write_text(f"{step}/{steps} {message}\n")


if __name__ == "__main__":
    sys.exit(main())
