"""Trains a small network on 1,797 pictures of handwritten digits, and survives being stopped.

It does what a long training should do under Longshore: reports its progress, saves a checkpoint
after every epoch and when it gets SIGTERM, and goes on from the checkpoint when it is started
again, on whatever node. All that decides the next epoch is in the checkpoint: the weights, what
the optimizer keeps, and the generator that shuffles the pictures. So however often it is stopped,
it ends with the same weights to the last bit; it prints their SHA-256. It ends with 0 when more
than 90 % of unseen digits are read correctly.

scikit-learn computes on the CPU: the GPU that this job holds shows up, but is not used.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

# One thread: the job asks for one core. It must be said before numpy is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

try:
    import joblib
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier
except ImportError as error:
    sys.exit(f"this example needs scikit-learn, which `make install` brings ({error})")

GOOD_ENOUGH = 0.9
STOPPED = 128 + signal.SIGTERM


def main() -> int:
    arguments = parse()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pictures, digits = load_digits(return_X_y=True)
    inputs, tests, labels, answers = train_test_split(
        pictures / 16.0, digits, test_size=0.25, random_state=7
    )
    model, shuffler, done = load_checkpoint()
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    print(f"epoch {done} of {arguments.epochs}, GPUs {gpus}, {len(inputs)} pictures", flush=True)
    accuracy = model.score(tests, answers) if done else 0.0
    for epoch in range(done + 1, arguments.epochs + 1):
        began = time.monotonic()
        order = shuffler.permutation(len(inputs))
        model.partial_fit(inputs[order], labels[order], classes=range(10))
        loss = log_loss(answers, model.predict_proba(tests), labels=range(10))
        accuracy = model.score(tests, answers)
        save_checkpoint(model, shuffler, epoch)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)
        report(epoch, arguments.epochs, f"epoch {epoch}, accuracy {accuracy:.3f}")
        # An epoch takes milliseconds here; a slower one can be watched, stopped and resumed.
        stop.wait(arguments.epoch_seconds - (time.monotonic() - began))
        if stop.is_set() and epoch < arguments.epochs:
            print(f"stopped after epoch {epoch}; the checkpoint is saved", flush=True)
            return STOPPED
    print(f"sha256 {digest_of(model, shuffler)}", flush=True)
    print(f"accuracy {accuracy:.3f} on unseen digits after {arguments.epochs} epochs", flush=True)
    put_out(accuracy, arguments.epochs)
    if arguments.model:
        joblib.dump(model, arguments.model)
    return 0 if accuracy > GOOD_ENOUGH else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--epoch-seconds", type=float, default=0.4, help="shortest time of one")
    parser.add_argument("--model", metavar="FILE", help="where the trained network goes")
    return parser.parse_args()


def load_checkpoint() -> tuple[MLPClassifier, np.random.Generator, int]:
    """Return the state as it was saved last, and its epoch; a new one and 0 where none was."""
    path = checkpoint_file()
    if path and path.exists():
        model, shuffler, epoch = joblib.load(path)
        print(f"resumed from the checkpoint of epoch {epoch}", flush=True)
        return model, shuffler, epoch
    # scikit-learn would begin its own shuffle anew in every epoch: ours goes on.
    model = MLPClassifier(
        hidden_layer_sizes=(64,), learning_rate_init=0.002, random_state=7, shuffle=False
    )
    return model, np.random.default_rng(7), 0


def save_checkpoint(model: MLPClassifier, shuffler: np.random.Generator, epoch: int) -> None:
    """Replace the checkpoint as one step: whoever is killed while saving keeps the last one."""
    if path := checkpoint_file():
        began = time.monotonic()
        draft = path.with_suffix(".draft")
        joblib.dump((model, shuffler, epoch), draft)
        draft.replace(path)
        if saved := os.environ.get("LONGSHORE_SAVED"):
            with Path(saved).open("a") as said:
                took = time.monotonic() - began
                said.write(f"saved, step {epoch}, took {took:.3f}s\n")  # now it may be published


def digest_of(model: MLPClassifier, shuffler: np.random.Generator) -> str:
    """Return the SHA-256 of the weights, of what the optimizer keeps, and of the generator."""
    adam = vars(model._optimizer)
    digest = hashlib.sha256(repr((adam["t"], shuffler.bit_generator.state)).encode())
    for array in (*model.coefs_, *model.intercepts_, *adam["ms"], *adam["vs"]):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def checkpoint_file() -> Path | None:
    """Return this job's file: by its id, so that jobs may share a folder that is not stored."""
    folder = os.environ.get("LONGSHORE_CHECKPOINT_DIR")
    return Path(folder) / f"{os.environ['LONGSHORE_JOB_ID']}.joblib" if folder else None


def put_out(accuracy: float, epochs: int) -> None:
    """Hand the result on to the jobs behind this one, where it is a job of a DAG."""
    if path := os.environ.get("LONGSHORE_OUTPUT"):
        Path(path).write_text(json.dumps({"accuracy": round(accuracy, 3), "epochs": epochs}))


def report(epoch: int, epochs: int, message: str) -> None:
    if path := os.environ.get("LONGSHORE_PROGRESS_FILE"):
        Path(path).write_text(f"{epoch}/{epochs} {message}\n")


if __name__ == "__main__":
    sys.exit(main())
