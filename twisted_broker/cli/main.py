"""The command line `replog`, over click: options and exit statuses.

1. The exit status is 0 when all is well, 1 when damage was found, 2 for wrong arguments.
2. Output is one line per fact on standard output; progress goes to standard error, and only to a
   terminal.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from twisted_broker import __version__
from twisted_broker.cli.dump import file_rows, files_below
from twisted_broker.cli.group import CommandGroup
from twisted_broker.cli.metadata import metadata
from twisted_broker.cli.mirror import mirror
from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.cli.rows import lines
from twisted_broker.cli.storage import format_storage
from twisted_broker.cli.tls import tls
from twisted_broker.cli.unregister import unregister
from twisted_broker.operating_system import check_system


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="replog")
def main() -> None:
    """Inspect the files of a Kafka broker, and explain the state of its replicas.

    Files are only read, so the broker may be running. Only `format`, `metadata recover` and
    `tls make` write: into new directories, and into that of a controller that is stopped.
    `unregister` and `mirror` change a running cluster.
    """
    check_system()


main.add_command(metadata)
main.add_command(format_storage)
main.add_command(unregister)
main.add_command(mirror)
main.add_command(tls)


@main.command("dump-log")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--records", is_flag=True, help="Show every record too, and decode those of internal topics."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def dump_log(path: Path, records: bool, as_json: bool) -> None:
    """Show PATH: a segment, an index, a snapshot, a checkpoint, or a whole directory.

    The exit status is 1 on damage.
    """
    damaged = False
    for file in files_below(path):
        if not as_json:
            click.echo(str(file))
        for line, bad in lines(str(file), file_rows(file, records), as_json):
            damaged = damaged or bad
            click.echo(line)
    sys.exit(1 if damaged else 0)


@main.command()
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIRECTORY...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--records", is_flag=True, help="Decompress and read every record too.")
@click.option(
    "--replicas",
    is_flag=True,
    help="Compare the replicas that the log directories of several brokers hold.",
)
@click.option(
    "--by-name",
    is_flag=True,
    help="With --replicas: compare partitions of one name in two clusters, as of a mirror and its "
    "source, whatever their topic ids and leader epochs. Give all directories of both.",
)
@click.option(
    "--topics",
    metavar="REGEX",
    default=None,
    help="With --by-name: only these topics, as of `replog mirror`; each must be in both clusters.",
)
def verify(
    directories: tuple[Path, ...],
    records: bool,
    replicas: bool,
    by_name: bool,
    topics: str | None,
) -> None:
    """Check every invariant of DIRECTORY: a log directory, or one partition in it.

    One line per finding; exit status 1 if any.
    """
    from twisted_broker.cli.progress import progress
    from twisted_broker.cli.verify import verify_directory
    from twisted_broker.cli.verify_replicas import verify_replicas

    if replicas != (len(directories) > 1) or (replicas and records):
        raise click.UsageError(
            "give one DIRECTORY, or --replicas (without --records) and two or more"
        )
    if by_name and not replicas:
        raise click.UsageError("--by-name compares replicas: give --replicas, too")
    if topics is not None and not by_name:
        raise click.UsageError("--topics are those of two clusters: give --by-name, too")
    try:
        chosen = None if topics is None else re.compile(topics)
    except re.error as error:
        raise click.UsageError(f"--topics {topics}: no regular expression: {error}") from None
    with progress() as on_progress:
        report = (
            verify_replicas(directories, on_progress, by_name, chosen)
            if replicas
            else verify_directory(directories[0], records, on_progress)
        )
    for finding in report.findings:
        click.echo(str(finding))
    click.echo(report.summary())
    sys.exit(1 if report.findings else 0)


@main.command()
@click.argument("name", metavar="TOPIC|GROUP")
@click.argument("partition", type=WholeNumber(min=0), required=False)
@click.option(
    "--run-file",
    "run_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Query all brokers of this run file; may be repeated.",
)
@click.option(
    "--status",
    "statuses",
    metavar="HOST:PORT",
    multiple=True,
    help="Query the broker at this status port; may be repeated.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="The answer of each broker, one JSON object per line."
)
def explain(
    name: str,
    partition: int | None,
    run_files: tuple[Path, ...],
    statuses: tuple[str, ...],
    as_json: bool,
) -> None:
    """Explain the state of PARTITION of TOPIC: its leader, which replicas are out of sync and why,
    which of them the high watermark waits for, what was truncated. Without PARTITION, of GROUP:
    what each member has, which partitions or tasks it waits for, and whose they are; of a share
    group which records are locked, by whom, and for how long.

    Queries every broker named. The exit status is 1 when none of them knows the partition or the
    group.
    """
    from twisted_broker.cli.explain import NoStatus, addresses_in, is_known, query_all
    from twisted_broker.cli.explain_text import explain_group_lines, explain_lines

    targets = [("", address) for address in statuses]
    missing = []
    for path in run_files:
        try:
            targets += addresses_in(path)
        except NoStatus as error:
            missing.append(str(error))
    if not targets:
        raise click.UsageError(
            "; ".join(missing)
            or "name the brokers to query: --run-file FILE, or --status HOST:PORT"
        )
    for line in missing:
        click.echo(line, err=True)
    answers = query_all(targets, name, partition)
    if as_json:
        for answer in answers:
            click.echo(
                json.dumps(
                    {
                        "address": answer.address,
                        "state": answer.state,
                        "error": answer.error or None,
                    }
                )
            )
    elif is_known(answers):
        lines = (
            explain_group_lines(answers)
            if partition is None
            else explain_lines(name, partition, answers)
        )
        for line in lines:
            click.echo(line)
    else:
        for answer in answers:
            click.echo(f"{answer.address}: {answer.error}", err=True)
    sys.exit(0 if is_known(answers) else 1)


if __name__ == "__main__":
    main()
