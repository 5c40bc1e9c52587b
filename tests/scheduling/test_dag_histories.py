"""Random DAGs that live: attempts are lost and tried again, single jobs and whole DAGs cancelled,
held and retried, in any order between the looks. They end as a small reference says."""

import random
from collections import Counter

from longshore.models.dag import OnFailure
from longshore.models.dag_view import DagState, StepState
from longshore.scheduling.dag import DagPlan, Graph, decide
from longshore.scheduling.dag_retry import reopened
from tests.support.reference_dags import a_random_dag, final_state, final_states, run_again
from tests.support.searches import seeds

W, R = StepState.WAITING, StepState.SUBMITTED
S, F, C, N = StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED, StepState.WITHDRAWN


class World:
    """What happens to the jobs of one DAG outside of it, and its looks at them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.on_failure = chance.choice((OnFailure.CONTINUE, OnFailure.CONTINUE, OnFailure.STOP))
        self.spec = a_random_dag(chance, 9, on_failure=self.on_failure)
        self.graph = Graph.of(self.spec)
        self.states = dict.fromkeys(self.graph.order, W)
        self.attempts: dict[str, int] = {}
        """Of jobs that are submitted and have not ended; 0 while nothing of it has started."""
        self.generation = 1
        self.submitted: Counter[tuple[str, int]] = Counter()
        self.started: Counter[tuple[str, int, int]] = Counter()
        self.held = False
        self.stopped_by: str | None = None
        self.cancelled: str | None = None
        self.plan = DagPlan(DagState.RUNNING, self.states)

    def look(self) -> None:
        self.plan = plan = decide(
            self.graph, self.states, self.on_failure, held=self.held,
            stopped_by=self.stopped_by, cancelled=self.cancelled,
        )  # fmt: skip
        assert not (plan.start and (self.held or self.cancelled)), "it starts nothing then"
        changed = {name for name, state in self.states.items() if plan.states[name] is not state}
        assert changed == set(plan.skip), "what is left out is told"
        assert not set(plan.start) & changed
        self.stopped_by = plan.stopped_by
        self.states = {**plan.states, **dict.fromkeys(plan.start, R)}
        for name in plan.start:
            self.submitted[name, self.generation] += 1
            self.attempts[name] = 0
        for name in plan.cancel:
            self.cancel(name)

    def cancel(self, name: str) -> None:
        if name in self.attempts:
            self.states[name] = C if self.attempts.pop(name) else N

    def something_happens(self) -> None:
        """An attempt starts, ends or is lost with its node; or somebody does something."""
        what, name = self.chance.random(), self.chance.choice(sorted(self.attempts) or [""])
        if what < 0.06:
            self.held = not self.held
        elif what < 0.07:
            self.cancelled = "enough"
        elif what < 0.13:
            self.cancel(name)
        elif name and self.chance.random() < 0.5:
            self.attempts[name] += 1
            self.started[name, self.generation, self.attempts[name]] += 1
        elif name and self.attempts[name] and self.chance.random() < 0.75:
            # Else it is lost with its node, or fails and is tried again: no end yet.
            self.states[name] = self.chance.choice((S, S, F))
            del self.attempts[name]

    def live(self) -> None:
        """Let things happen until the DAG has ended; fail where it would hang."""
        for _ in range(self.chance.randint(0, 60)):
            self.something_happens()
            if self.chance.random() < 0.5:
                self.look()
        self.held = False
        for _ in range(4 * len(self.states) + 4):
            self.look()
            if self.plan.state.ended:
                return
            assert self.attempts or self.plan.cancel, (
                "nothing runs, and it has not ended: it hangs"
            )
            for name in sorted(self.attempts):
                self.states[name] = self.chance.choice((S, S, F))
                del self.attempts[name]
        raise AssertionError("it does not come to its end")

    def retry(self) -> set[str]:
        again = reopened(self.graph, self.states).jobs
        assert set(again) == run_again(self.spec, self.states)
        self.states |= dict.fromkeys(again, W)
        self.generation += 1
        self.stopped_by = self.cancelled = None
        return set(again)


def test_whatever_happens_they_end_as_the_reference_says() -> None:
    for seed in seeds(300):
        _lives_three_times(World(random.Random(seed)))


def _lives_three_times(world: World) -> None:
    again = set(world.spec.jobs)
    for _ in range(3):
        world.live()
        states = world.states
        assert all(state.ended for state in states.values())
        if world.cancelled and {C, N} & set(states.values()):
            assert world.plan.state is DagState.CANCELLED
        else:
            assert world.plan.state is final_state(world.spec, states)
        if world.stopped_by is None and world.cancelled is None:
            ran = {name: states[name] for name, number in world.submitted if
                   number == world.generation}  # fmt: skip
            assert states == final_states(world.spec, ran, world.spec.jobs.keys() - again)
        again = world.retry()
        if not again:  # nothing failed or was cancelled, and nobody can retry it
            break
    assert not [each for each, times in world.submitted.items() if times > 1]
    assert not [each for each, times in world.started.items() if times > 1]
