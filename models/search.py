"""Search attributes of jobs, arrays and DAGs: what people filter by in the Temporal UI.

A namespace on PostgreSQL has room for 10 keywords, 3 lists of them and 3 integers in all; these
take 7, 1 and 2.
They are stored in plain text. `JobState` is what a running job does; how one ended is Temporal's
own `ExecutionStatus`.
"""

TENANT = "Tenant"
POOL = "Pool"
JOB_STATE = "JobState"
GPU_TYPE = "GpuType"
NODE_ID = "NodeId"
DAG = "LongshoreDag"
LABELS = "LongshoreLabels"
"""A list of ``name=value``, as people select jobs by them."""
FUNDING_CLASS = "FundingClass"
"""Of a job that runs, of a tenant with a budget."""
GPU_COUNT = "GpuCount"
PRIORITY_CLASS = "PriorityClass"

SEARCH_ATTRIBUTES: dict[str, str] = {
    TENANT: "Keyword",
    POOL: "Keyword",
    JOB_STATE: "Keyword",
    GPU_TYPE: "Keyword",
    NODE_ID: "Keyword",
    DAG: "Keyword",
    FUNDING_CLASS: "Keyword",
    LABELS: "KeywordList",
    GPU_COUNT: "Int",
    PRIORITY_CLASS: "Int",
}
"""Name and type of each, as a server has to know them before the first job."""
