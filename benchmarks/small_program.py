"""The integer program of benchmarks.small: jobs on GPUs of a small cluster, by CP-SAT.

A group of jobs that ask for the same has a number on each node, or on each GPU where it shares
one; cores, RAM, GPUs and thousandths limit the sums.
"""
# pyright: basic
# ortools says little of its types.

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from benchmarks.packing_lists import WHOLE, NodeSize, Pod, could_take

try:
    cp_model: Any = import_module("ortools.sat.python.cp_model")
except ImportError:
    cp_model = None

QUESTION_SECONDS = 2.0
WORKERS = 2
SEED = 20261122


def is_there() -> bool:
    """Return whether ortools is installed."""
    return cp_model is not None


def most(nodes: Sequence[NodeSize], pods: Sequence[Pod], seconds: float) -> tuple[float, float]:
    """Return the most thousandths that some of the pods get, as far as found, and a bound."""
    model, counts = _model(nodes, Counter(pods))
    model.maximize(sum(pod.gpu_milli * sum(row) for pod, row in counts.items()))
    for pod, row in counts.items():
        model.add(sum(row) <= pods.count(pod))
    solver = _solver(seconds)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return 0.0, float(sum(pod.gpu_milli for pod in pods))
    return solver.objective_value, solver.best_objective_bound


def start_in_rank(nodes: Sequence[NodeSize], pods: Sequence[Pod]) -> list[Pod]:
    """Return the pods that start where each is asked for in turn, and none is preempted."""
    started: list[Pod] = []
    refused: set[Pod] = set()
    for pod in pods:
        if pod in refused:
            continue  # what did not fit beside fewer does not fit beside more
        wanted = Counter([*started, pod])
        model, counts = _model(nodes, wanted)
        for each, row in counts.items():
            model.add(sum(row) == wanted[each])
        found = _solver(QUESTION_SECONDS).solve(model)
        if found in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            started.append(pod)
        else:
            refused.add(pod)
    return started


def _solver(seconds: float):
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = SEED
    return solver


def _model(nodes: Sequence[NodeSize], wanted: Counter[Pod]):
    """Return the program, and the numbers of each group of pods."""
    model = cp_model.CpModel()
    counts = {pod: [] for pod in wanted}
    for node in nodes:
        here = [pod for pod in wanted if could_take(node, pod)]
        gpus = [model.new_bool_var("") for _ in range(node.gpus)]
        shared = [0] * node.gpus
        """Thousandths in use of each GPU that is shared."""
        cpu = ram = whole = 0
        for pod in here:
            if pod.milli == WHOLE:
                number = model.new_int_var(0, min(wanted[pod], node.gpus // pod.gpus), "")
                whole += pod.gpus * number
                numbers = [number]
            else:
                numbers = [
                    model.new_int_var(0, min(wanted[pod], WHOLE // pod.milli), "") for _ in gpus
                ]
                for gpu, number in enumerate(numbers):
                    shared[gpu] += pod.milli * number
            counts[pod] += numbers
            cpu += pod.cpu * sum(numbers)
            ram += pod.ram * sum(numbers)
        if not here:
            continue
        model.add(cpu <= node.cpu)
        model.add(ram <= node.ram)
        model.add(whole + sum(gpus) <= node.gpus)
        for gpu, used in zip(gpus, shared, strict=True):
            model.add(used <= WHOLE * gpu)
        for gpu, following in pairwise(gpus):
            model.add(gpu >= following)
    return model, counts
