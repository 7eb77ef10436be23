"""`replog pipeline jars`: fetches the pinned jars into the cache folder, or lists them for
`spark-submit --jars`.
"""

from __future__ import annotations

import click

from replog_pipeline.machine import jars


@click.command("jars")
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="Print the paths in one line, joined by commas, as `spark-submit --jars` takes them.",
)
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=click.Choice(jars.STORES),
    help="Those for tables on s3a:// (690 MB) or gs:// (35 MB), too.",
)
@click.option("--quiet", is_flag=True, help="No progress.")
def command(listing: bool, stores: tuple[str, ...], quiet: bool) -> None:
    """Fetch the jars that Spark needs for Kafka and Delta, unless they are there.

    They come through Spark's own resolver, or from REPLOG_JARS_URL, a mirror laid out as Maven
    repositories are; each must have the SHA-256 that this program knows. They are kept in
    REPLOG_JARS, else in the user's cache folder. Afterwards no network is needed.
    """
    wanted = [*jars.ALL, *jars.of(dict.fromkeys(stores))]
    paths = jars.provide(wanted, lambda line: None if quiet else click.echo(line, err=True))
    click.echo(",".join(map(str, paths)) if listing else "\n".join(map(str, paths)))
