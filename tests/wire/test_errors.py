"""The table of error codes is Kafka's."""

from kio.schema.errors import ErrorCode as TheirErrorCode

from twisted_broker.wire.errors import BrokerError, ErrorCode


def test_numbers_names_and_what_may_be_retried() -> None:
    """As kio has them out of Kafka's sources, which were compared with Kafka 4.3.1's classes as
    well.
    """
    theirs = {code.name.upper(): (code.value, code.retriable) for code in TheirErrorCode}
    assert {code.name: (code.value, code.retriable) for code in ErrorCode} == theirs


def test_every_code_has_its_own_sentence() -> None:
    sentences = [code.sentence for code in ErrorCode]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_a_broker_error_says_what_it_is() -> None:
    """The code's sentence stands in where no message was given."""
    assert BrokerError(ErrorCode.NOT_CONTROLLER).message == ErrorCode.NOT_CONTROLLER.sentence
    assert str(BrokerError(ErrorCode.NOT_CONTROLLER, "ask 3")) == "NOT_CONTROLLER: ask 3"
