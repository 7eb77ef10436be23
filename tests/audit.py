"""`make audit`: known vulnerabilities of what is installed, by pip-audit, whose data is elsewhere.

Status 1: some are known. Status 2: packages could not be looked up, which pip-audit itself takes
for good.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def verdict(dependencies: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """The status, and the lines that say why."""
    bad = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in "
        f"{', '.join(flaw.get('fix_versions', ())) or 'no version'}"
        for each in dependencies
        for flaw in each.get("vulns", ())
    ]
    unknown = [each["name"] for each in dependencies if "skip_reason" in each]
    own = {"twisted-broker", "twisted-broker-pipeline"}
    unknown = [name for name in unknown if name.lower().replace("_", "-") not in own]
    lines = [*bad, f"{len(dependencies)} packages, {len(bad)} known vulnerabilities"]
    if unknown:
        lines.append(
            f"no data on {len(unknown)} of them, which were not looked at: {unknown[0]} .."
        )
    return (1 if bad else 2 if unknown or not dependencies else 0), lines


def main(program: str) -> int:
    command = [program, "-f", "json"]
    for path in (path for path in sys.path if path.endswith("site-packages")):
        command += ["--path", path]
    done = subprocess.run(
        [*command, "--progress-spinner", "off", "--timeout", "10"], capture_output=True, text=True
    )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"make audit: pip-audit reached no data: {done.stderr.strip()[-300:]}")
        return 2
    status, lines = verdict(dependencies)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
