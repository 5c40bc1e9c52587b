"""The errors that Longshore raises, as a tree. Each says what was wrong and what to do next.

::

    LongshoreError
    ├── SpecError              a document does not hold what it should (file, line, field)
    │   └── StoredError        what is stored cannot be read; a newer version may read it
    ├── ConflictError          the same name and key were submitted with other content
    ├── UnsatisfiableError     no node that can ever come could hold the job
    ├── NotFoundError          no such job, node or pool
    │   ├── NoProviderError    this installation has no client of a market
    │   ├── NoRecordError      the database has no such job, and its workflow is over
    │   └── NotTakenUpError    the database has no such job yet: no control worker has taken it up
    ├── UnavailableError       a server that is needed does not answer
    │   ├── LockedError        another session keeps what is needed in the database
    │   ├── MarketAwayError    a market does not answer, or asks to be left alone for a while
    │   └── StoreError         the checkpoint store cannot be read or written
    ├── RefusedError           the database or an authority said no
    │   ├── NewerTablesError   a newer version has upgraded the database
    │   ├── EndedError         the job has ended already
    │   ├── NotSubmittedError  a job of a DAG waits for others, or was left out
    │   ├── TokenError         an agent's proof does not match the join token
    │   │   └── ClockError     its clock is too far from the server's
    │   ├── NodeTakenError     another live agent holds this node id
    │   └── StaleError         an old attempt or epoch spoke (fencing)
    ├── NeverReadyError        the engines of a service fail, and none was ever ready
    ├── DamagedError           a stored checkpoint is not what its manifest says
    ├── MarketError            a market said no
    │   ├── CredentialsError   it does not know the key, or the key may not do this
    │   ├── FundsError         the account has too little money
    │   ├── InvalidOrderError  it does not take a request as it was made
    │   │   └── OfferRefusedError  a seller takes no order of its offer with this image
    │   ├── GoneError          an offer, order or machine is not there (any more)
    │   ├── OrderConflictError the state of the thing, or another request with the key, forbids it
    │   └── AnswerError        its answer is not what its documentation says
    └── StackError             the local servers cannot be started or stopped

`exit_code` is what the command line returns for it (sysexits where one fits).
"""

from typing import ClassVar


class LongshoreError(Exception):
    """Base of every error that a user may see. The text is a sentence for that user."""

    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False


class SpecError(LongshoreError):
    """A document does not hold what it should; `problems` has a line per mistake."""

    exit_code = 65

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(problems))


class StoredError(SpecError):
    """What is stored cannot be read; a newer version may, or somebody mends it."""

    retryable = True


class ConflictError(LongshoreError):
    exit_code = 65


class UnsatisfiableError(LongshoreError):
    """`field` of what was asked is what cannot be, where it is one; of a model its files else."""

    exit_code = 69

    def __init__(self, text: str, *, field: str = "") -> None:
        self.field = field
        super().__init__(text)


class NotFoundError(LongshoreError):
    exit_code = 66


class NoProviderError(NotFoundError):
    """This installation has no client of a market. Another worker may have: a step is tried
    again."""

    retryable = True


class NoRecordError(NotFoundError):
    """The database has no row of a job whose workflow is over; `why` it was refused, if it was."""

    exit_code = 70  # as of a job that has failed

    def __init__(self, text: str, why: str = "") -> None:
        self.why = why
        super().__init__(text)


class NotTakenUpError(NotFoundError):
    """The database does not know the job `job_id` yet: no control worker has taken it up."""

    def __init__(self, job_id: str, text: str) -> None:
        self.job_id = job_id
        super().__init__(text)


class UnavailableError(LongshoreError):
    exit_code = 69
    retryable = True


class LockedError(UnavailableError):
    pass


class StoreError(UnavailableError):
    exit_code = 69


class NeverReadyError(LongshoreError):
    """The engines of a service fail and none was ever ready; it is tried again and again."""

    exit_code = 1


class DamagedError(LongshoreError):
    exit_code = 65


class RefusedError(LongshoreError):
    exit_code = 77


class NewerTablesError(RefusedError):
    pass


class EndedError(RefusedError):
    pass


class NotSubmittedError(RefusedError):
    """A job of a DAG that is in no queue: job `name` of `dag_id`, which waits for others, or has
    `ended` without ever being submitted."""

    def __init__(self, dag_id: str, name: str, text: str, *, ended: bool) -> None:
        self.dag_id = dag_id
        self.name = name
        self.ended = ended
        super().__init__(text)


class TokenError(RefusedError):
    pass


class ClockError(TokenError):
    pass


class NodeTakenError(RefusedError):
    pass


class StaleError(RefusedError):
    pass


class MarketError(LongshoreError):
    """A market said no. The text names the market, and never holds a credential.

    `creates` is true of the answer to a request that creates something: of a look it says nothing
    of what was asked for before. `fields` are those of the request that it complains of.
    """

    exit_code = 69

    def __init__(self, provider: str, text: str, *, status: int | None = None) -> None:
        self.provider = provider
        self.status = status
        self.creates = False
        self.fields: tuple[str, ...] = ()
        super().__init__(f"{provider}: {text}")


class MarketAwayError(UnavailableError):
    """A market does not answer, or asks to be left alone for a while.

    `retry_after` are the seconds that it asked for. `uncertain` is true when a request that
    creates something may have arrived: look for what it created before it is sent again.
    """

    def __init__(
        self,
        provider: str,
        text: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        uncertain: bool = False,
    ) -> None:
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.uncertain = uncertain
        super().__init__(f"{provider}: {text}")


class CredentialsError(MarketError):
    """A market does not accept the token. A step is tried again: somebody gives another."""

    exit_code = 77
    retryable = True


class FundsError(MarketError):
    pass


class InvalidOrderError(MarketError):
    exit_code = 65


class OfferRefusedError(InvalidOrderError):
    """A seller takes no order of its offer with this image, or a market none of a row of its book,
    now or later: take another's."""


class GoneError(MarketError):
    exit_code = 66


class OrderConflictError(MarketError):
    pass


class AnswerError(MarketError):
    """A market's answer cannot be read. A step is tried again: it may have been cut off, and what
    was bought has to be followed to its end."""

    retryable = True


class StackError(LongshoreError):
    exit_code = 71
