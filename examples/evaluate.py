"""Reads pictures of digits with a network that another job has trained (`train.py --model FILE`).

    python evaluate.py model.joblib

It ends with 0 when more than 90 % of the digits that the training never saw are read correctly.
"""

import os
import sys

try:
    import joblib
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f"this example needs scikit-learn, which `make install` brings ({error})")

GOOD_ENOUGH = 0.9


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit("usage: python evaluate.py MODEL")
    model = joblib.load(sys.argv[1])
    pictures, digits = load_digits(return_X_y=True)
    _, tests, _, answers = train_test_split(
        pictures / 16.0, digits, test_size=0.25, random_state=7
    )
    accuracy = model.score(tests, answers)
    # What the job before it has put out, where both are jobs of a DAG.
    epochs = os.environ.get("LONGSHORE_OUTPUT_TRAIN__EPOCHS", "some")
    print(f"accuracy {accuracy:.3f} on {len(tests)} unseen digits, after {epochs} epochs")
    return 0 if accuracy > GOOD_ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
