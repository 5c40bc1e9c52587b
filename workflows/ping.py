"""A question that shows whether anybody takes work: `longshore doctor` starts it, and waits."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from longshore.models.messages import PING_WORKFLOW


@workflow.defn(name=PING_WORKFLOW)
class PingWorkflow:
    """Completes at once. A control worker that has been killed is still listed among those that
    ask for work for a minute: that it took this one, and no list, shows that one is there."""

    @workflow.run
    async def run(self) -> None:
        return
