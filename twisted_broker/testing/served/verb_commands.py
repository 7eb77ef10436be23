"""`replog cluster VERB`: the verbs of a cluster that runs, for a shell.

Owns `verb_command`, made of the table of verbs: what must be given goes in order, the rest by name.

1. The cluster is that of `--url`, or of `KAFKA_TEST_URL`.
2. What a verb gives is one line of JSON; what it refuses is one line, exit status 1.

Source: our own. Not here: what can be asked (`verbs.py`).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import click

from twisted_broker.testing.served.verbs import VERBS, Field, Verb

_SECONDS = 600.0
_PLAIN = ("duration", "text")


def verb_command(name: str) -> click.Command | None:
    """None: there is no such verb."""
    verb = VERBS.get(name.replace("-", "_"))
    if verb is None:
        return None
    parameters: list[click.Parameter] = [
        click.Argument([field.name], metavar=field.name.upper())
        for field in verb.fields
        if field.default is ...
    ]
    parameters += [
        click.Option(
            [f"--{field.name.replace('_', '-')}", field.name], help=field.about, metavar="VALUE"
        )
        for field in verb.fields
        if field.default is not ...
    ]
    url = click.Option(
        ["--url"], envvar="KAFKA_TEST_URL", required=True, help="Of the cluster's HTTP API."
    )

    def run(url: str, **given: str | None) -> None:
        click.echo(json.dumps(_asked(verb, url, given)))

    return click.Command(name, callback=run, params=[*parameters, url], help=verb.about)


def _asked(verb: Verb, url: str, given: dict[str, str | None]) -> Any:
    fields = {field.name: field for field in verb.fields}
    body = {name: _value(fields[name], text) for name, text in given.items() if text is not None}
    request = urllib.request.Request(  # noqa: S310  the user's own cluster
        f"{url}/v1/{verb.name}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise click.ClickException(json.load(error)["error"]) from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no cluster answers at {url}: {error}") from None


def _value(field: Field, text: str) -> Any:
    """As the body has it: text where the field takes some, else JSON."""
    if field.kind in _PLAIN:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # a name; what cannot be is refused with what can
