"""Your own retry policy: a pure function from facts to a decision."""

from matador import RetryContext, RetryLater, SendToDeadLetters, StandardRetryPolicy
from matador.policy.retry import Decision
from matador.testing import make_receipt


# --8<-- [start:policy]
class PatientWithNetworks:
    """Retries network errors every ten seconds for an hour."""

    max_deliveries = 5

    def __init__(self) -> None:
        self._standard = StandardRetryPolicy()

    def decide(self, context: RetryContext) -> Decision:
        if not isinstance(context.error, ConnectionError):
            return self._standard.decide(context)
        if context.attempts >= 360:
            return SendToDeadLetters("undeliverable", "no network for an hour")
        return RetryLater(10)


# --8<-- [end:policy]

# --8<-- [start:test]
facts = RetryContext(error=ConnectionError("no route to host"), attempts=7, receipt=make_receipt())
print(PatientWithNetworks().decide(facts))  # RetryLater(delay=10, reason='failed')
# --8<-- [end:test]
