"""Settings: from a file, from the environment and from code, checked before any connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from matador.channels import (
    ConfigurationError,
    DeadLetterQueueSettings,
    QueueSettings,
    RedisModeWarning,
    RetrySettings,
    Settings,
    ShutdownSettings,
    consume,
)

WHOLE = """
[queue]
type = "rabbitmq"
url = "amqp://localhost"
prefetch = 5
compression = true
[retry]
enabled = false
max_attempts = 4
initial_delay = 0.5
backoff_multiplier = 3.0
[dead_letter_queue]
enabled = false
[shutdown]
timeout = 5
"""


def load(text: str, folder: Path, **variables: str) -> Settings:
    path = folder / "matador.toml"
    path.write_text(text)
    return Settings.load(path, variables)


def problem(text: str, folder: Path, **variables: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(text, folder, **variables)
    return str(caught.value)


class TestSources:
    def test_a_whole_file(self, tmp_path: Path) -> None:
        assert load(WHOLE, tmp_path) == Settings(
            QueueSettings(type="rabbitmq", url="amqp://localhost", prefetch=5, compression=True),
            RetrySettings(enabled=False, max_attempts=4, initial_delay=0.5, backoff_multiplier=3.0),
            DeadLetterQueueSettings(enabled=False),
            ShutdownSettings(timeout=5),
        )

    def test_type_and_url_are_enough_and_the_rest_has_safe_defaults(self, tmp_path: Path) -> None:
        """Scenario: default configuration behavior."""
        settings = load('[queue]\ntype = "memory"\nurl = "memory://"', tmp_path)
        assert settings.queue.prefetch == 1
        assert settings.queue.compression is False
        assert settings.retry == RetrySettings(
            enabled=True, max_attempts=3, initial_delay=1.0, backoff_multiplier=2.0
        )
        assert settings.dead_letter_queue.enabled
        assert settings.shutdown.timeout == 30.0

    def test_the_environment_wins(self, tmp_path: Path) -> None:
        settings = load(
            WHOLE,
            tmp_path,
            MATADOR_QUEUE__URL="amqp://elsewhere",
            MATADOR_QUEUE__PREFETCH="7",
            MATADOR_RETRY__ENABLED="yes",
            MATADOR_RETRY__INITIAL_DELAY="0.25",
            MATADOR_SHUTDOWN__TIMEOUT="1.5",
            MATADOR_CACHE="/somewhere",  # another variable of ours
            HOME="/home/ada",
        )
        assert settings.queue.url == "amqp://elsewhere"
        assert settings.queue.prefetch == 7
        assert settings.retry.enabled is True
        assert settings.retry.initial_delay == 0.25
        assert settings.shutdown.timeout == 1.5
        assert settings.retry.max_attempts == 4, "what is not set stays as in the file"

    def test_the_environment_alone(self) -> None:
        given = {"MATADOR_QUEUE__TYPE": "sqlite", "MATADOR_QUEUE__URL": "sqlite:///q.db"}
        assert Settings.load(environment=given).queue.address == "sqlite:///q.db"

    def test_the_environment_of_the_process_is_read_by_default(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MATADOR_QUEUE__TYPE", "memory")
        monkeypatch.setenv("MATADOR_QUEUE__URL", "memory://")
        assert Settings.load().queue.type == "memory"


class TestMistakes:
    def test_an_unknown_type_lists_the_supported_ones(self, tmp_path: Path) -> None:
        """Scenario: invalid queue type."""
        text = problem('[queue]\ntype = "rabitmq"\nurl = "amqp://localhost"', tmp_path)
        assert "memory, sqlite, redis, rabbitmq, kafka, sqs" in text
        assert "did you mean 'rabbitmq'" in text

    @pytest.mark.parametrize("url", ["http://localhost", "localhost", "redis://localhost"])
    def test_a_wrong_url_of_rabbitmq_shows_the_right_form(self, tmp_path: Path, url: str) -> None:
        """Scenario: invalid RabbitMQ URL format."""
        text = problem(f'[queue]\ntype = "rabbitmq"\nurl = "{url}"', tmp_path)
        assert "amqp:// or amqps://" in text
        assert "amqp://user:password@localhost:5672/vhost" in text

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost",
            "a:9092,b",
            "a:9092;b:9092",
            "a:9092 b:9092",
            "http://a:9092",
            "a:0",
            "a:99999",
        ],
    )
    def test_a_wrong_list_of_kafka_servers_shows_the_right_form(
        self, tmp_path: Path, url: str
    ) -> None:
        """Scenario: invalid Kafka broker list."""
        text = problem(f'[queue]\ntype = "kafka"\nurl = "{url}"', tmp_path)
        assert "host1:9092,host2:9092" in text

    @pytest.mark.parametrize("name", ["type", "url"])
    def test_a_missing_field_is_named_with_its_type_and_default(
        self, tmp_path: Path, name: str
    ) -> None:
        """Scenario: missing required configuration."""
        both = {"type": 'type = "memory"', "url": 'url = "memory://"'}
        del both[name]
        text = problem("[queue]\n" + "\n".join(both.values()), tmp_path)
        assert f"queue.{name} is missing" in text
        assert "required (no default)" in text
        assert f"MATADOR_QUEUE__{name.upper()}" in text

    def test_no_queue_section_at_all(self, tmp_path: Path) -> None:
        assert "queue.type is missing" in problem("", tmp_path)

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("prefetch = 0", "queue.prefetch must be at least 1"),
            ('prefetch = "5"', "queue.prefetch must be a whole number"),
            ('compression = "yes"', "queue.compression must be true or false"),
            ('mode = "stream"', "queue.mode is for type"),
            ("prefetsh = 5", "unknown setting queue.prefetsh; did you mean 'prefetch'?"),
            ("[retry]\nmax_attempts = 0", "retry.max_attempts must be at least 1"),
            ("[retry]\nenabled = 1", "retry.enabled must be true or false"),
            ("[retry]\ninitial_delay = -1", "retry.initial_delay must be at least 0"),
            ("[retry]\ninitial_delay = inf", "retry.initial_delay must be a finite"),
            ("[retry]\nbackoff_multiplier = 0.5", "retry.backoff_multiplier must be from 1"),
            ("[dead_letter_queue]\nenabled = 0", "dead_letter_queue.enabled must be true"),
            ("[shutdown]\ntimeout = -1", "shutdown.timeout must be at least 0"),
            ("[retri]\nenabled = true", "unknown section [retri]; did you mean 'retry'?"),
        ],
    )
    def test_each_wrong_value_is_named(self, tmp_path: Path, line: str, expected: str) -> None:
        text = problem(f'[queue]\ntype = "memory"\nurl = "memory://"\n{line}', tmp_path)
        assert expected in text
        assert "matador.toml" in text, "it says where"

    @pytest.mark.parametrize(
        ("variable", "value", "expected"),
        [
            ("MATADOR_QUEUE__PREFETCH", "many", "MATADOR_QUEUE__PREFETCH must be a whole number"),
            ("MATADOR_RETRY__ENABLED", "perhaps", "MATADOR_RETRY__ENABLED must be true or false"),
            ("MATADOR_QUEUE__PREFETSH", "1", "did you mean 'MATADOR_QUEUE__PREFETCH'?"),
            ("MATADOR_RETRI__ENABLED", "1", "did you mean 'MATADOR_RETRY__'?"),
        ],
    )
    def test_a_wrong_variable_is_named(
        self, tmp_path: Path, variable: str, value: str, expected: str
    ) -> None:
        assert expected in problem(WHOLE, tmp_path, **{variable: value})

    def test_a_file_that_is_missing_or_not_toml(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="there is no file"):
            Settings.load(tmp_path / "nowhere.toml", {})
        assert "is not valid TOML" in problem("[queue", tmp_path)
        assert "must be in a section" in problem('type = "memory"', tmp_path)

    @pytest.mark.parametrize(
        "path",
        ["", "half \ud800", "nul\0", "x" * 5000, "matador.toml/x", 5, b"bytes"],
        ids=lambda path: repr(path)[:20],
    )
    def test_a_path_that_cannot_be_read(self, path: object) -> None:
        with pytest.raises(ConfigurationError, match=r"cannot be read|there is no file"):
            Settings.load(path, {})  # pyright: ignore[reportArgumentType] - wrong

    @pytest.mark.parametrize(
        "content",
        [
            b"\xff\xfe[\0",
            b"\0",
            b"[queue]\nprefetch = " + b"9" * 5000,
            b"[queue]\nprefetch = " + b"[" * 10_000,
            b"[queue]\nurl = amqp://ada:s3cret@host",
        ],
        ids=["UTF-16", "NUL", "a long number", "deep", "no quotes"],
    )
    def test_content_that_cannot_be_read(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "matador.toml"
        path.write_bytes(content)
        expected = r"matador\.toml'? (cannot be read|is not valid TOML)"
        with pytest.raises(ConfigurationError, match=expected) as caught:
            Settings.load(path, {})
        assert "s3cret" not in str(caught.value)

    def test_a_file_may_begin_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "matador.toml"
        path.write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
        assert Settings.load(path, {}).queue.prefetch == 5

    def test_so_many_at_once_that_no_machine_could(self, tmp_path: Path) -> None:
        many = '[queue]\ntype = "memory"\nurl = "memory://"\nprefetch = 1000000000'
        assert "queue.prefetch must be at most 65535" in problem(many, tmp_path)
        with pytest.raises(
            ConfigurationError, match=r"consume\('made'\): concurrency must be at most"
        ):
            consume("made", concurrency=65_536)

    def test_a_port_that_is_none(self, tmp_path: Path) -> None:
        text = problem(f'[queue]\ntype = "kafka"\nurl = "host:{"9" * 5000}"', tmp_path)
        assert "host1:9092,host2:9092" in text

    @pytest.mark.parametrize(
        "line",
        [
            'type = "{}"',
            'mode = "{}"',
            'prefetch = "{}"',
            'compression = "{}"',
            '"{}" = 1',
            '[retry]\nmax_attempts = "{}"',
            '[retry]\ninitial_delay = "{}"',
            '[retry]\nbackoff_multiplier = "{}"',
            '[shutdown]\ntimeout = "{}"',
            '["{}"]\nenabled = true',
        ],
    )
    def test_an_address_in_the_wrong_place(self, tmp_path: Path, line: str) -> None:
        """Its password is not repeated."""
        address = "amqp://ada:s3cret@host"
        kind = "" if line.startswith("type") else 'type = "redis"\n'
        text = problem(f'[queue]\n{kind}url = "redis://h"\n{line.format(address)}', tmp_path)
        assert "s3cret" not in text
        assert "amqp://ada:***@host" in text

    @pytest.mark.parametrize(
        "name",
        ["QUEUE__TYPE", "QUEUE__MODE", "QUEUE__PREFETCH", "RETRY__ENABLED", "SHUTDOWN__TIMEOUT"],
    )
    def test_an_address_in_the_wrong_variable(self, tmp_path: Path, name: str) -> None:
        text = problem(WHOLE, tmp_path, **{f"MATADOR_{name}": "amqp://ada:s3cret@host"})
        assert "s3cret" not in text
        assert "amqp://ada:***@host" in text

    def test_settings_are_shown_without_passwords(self) -> None:
        queue = QueueSettings(type="rabbitmq", url="amqp://ada:s3cret@host/shop", prefetch=2)
        for shown in (repr(queue), str(Settings(queue))):
            assert "s3cret" not in shown
            assert "type='rabbitmq', url='amqp://ada:***@host/shop', mode=None, prefetch=2" in shown

    def test_passwords_are_not_repeated(self, tmp_path: Path) -> None:
        for kind in ("rabbitmq", "redis", "kafka", "sqs"):
            text = problem(f'[queue]\ntype = "{kind}"\nurl = "http://ada:s3cret@host/x"', tmp_path)
            assert "s3cret" not in text


class TestRedis:
    def test_without_a_mode_it_is_pubsub_and_warns(self) -> None:
        """Scenario: Redis migration path."""
        with pytest.warns(RedisModeWarning, match='set mode = "stream"'):
            settings = Settings(QueueSettings(type="redis", url="redis://localhost"))
        assert settings.queue.address == "redis://localhost?mode=pubsub"

    @pytest.mark.parametrize("mode", ["stream", "list", "pubsub"])
    def test_a_mode_does_not_warn(self, mode: str) -> None:
        queue = QueueSettings(type="redis", url="redis://localhost/1?db=1", mode=mode)  # pyright: ignore[reportArgumentType] - parametrised
        found = "streams" if mode == "stream" else mode
        assert Settings(queue).queue.address == f"redis://localhost/1?db=1&mode={found}"

    def test_an_unknown_mode(self) -> None:
        with pytest.raises(ConfigurationError, match="stream, list, pubsub"):
            QueueSettings(type="redis", url="redis://localhost", mode="streams")  # pyright: ignore[reportArgumentType] - wrong


def test_delays_grow_and_are_bounded() -> None:
    """Scenario: configurable retry strategy."""
    retry = RetrySettings()
    assert [retry.delay(attempt) for attempt in (1, 2, 3)] == [1.0, 2.0, 4.0]
    assert RetrySettings(initial_delay=0.5, backoff_multiplier=3).delay(3) == 4.5
    assert retry.delay(100_000) == 3600.0


@pytest.mark.parametrize(
    "url",
    [
        *("h:1", "h:9092", "h:65535", "h:09092", "a:9092,b:9093", "a:9092, b:9093"),
        *("[::1]:9092", "kafka://h:9092", "kafka://a:1,b:2", "kafka://user:secret@h:9092"),
    ],
)
def test_a_list_of_kafka_servers(url: str) -> None:
    address = QueueSettings(type="kafka", url=url, batch_size=7).address
    assert address.startswith("kafka://")
    assert address.endswith("?batch_size=7")


@pytest.mark.parametrize(
    "url",
    [
        *("h", "h:", ":9092", "h:0", "h:65536", "h:100000", "h:-1", "h:x", "h:9092,", "::1:9092"),
        *("a b:9092", "a;b:9092", "amqp://h:9092", "h:9092,amqp://h:9092", ""),
    ],
)
def test_what_is_no_list_of_kafka_servers(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue\.url"):
        QueueSettings(type="kafka", url=url)


def test_a_wrong_scheme_is_shown_and_nothing_that_may_be_a_password() -> None:
    with pytest.raises(ConfigurationError, match=r", got http://…$"):
        QueueSettings(type="rabbitmq", url="http://user:secret@host")
    for url in ("user:secret@host", "se cret://host", "secret"):
        with pytest.raises(ConfigurationError, match="must start with amqp://") as caught:
            QueueSettings(type="rabbitmq", url=url)
        assert "got" not in str(caught.value)
        assert "cret" not in str(caught.value)
