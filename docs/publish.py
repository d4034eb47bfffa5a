"""Put a built site into the folder of its version, beside those of other versions.

    python docs/publish.py docs/_build/html site v0.1.0

The site has a folder per minor version (`0.1`) and `dev`. Its front page leads to the newest
version, and `switcher.json`, which the pages of all versions load, lists them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEVELOPMENT = "dev"
FRONT_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>proxfield</title>
<meta http-equiv="refresh" content="0; url={folder}/">
<link rel="canonical" href="{folder}/">
<p>The documentation of proxfield is <a href="{folder}/">here</a>.</p>
</html>
"""


def version_folder(ref: str) -> str:
    """The folder of a branch or tag: `0.1` for `v0.1.0` and `v0.1.2`, `dev` for anything else."""
    release = re.fullmatch(r"v(\d+)\.(\d+)\.\d+", ref)
    return f"{release[1]}.{release[2]}" if release else DEVELOPMENT


def published_versions(site: Path) -> list[str]:
    """The versions that have a folder, newest first, without `dev`."""
    found = [path.name for path in site.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def switcher_entries(site: Path, url: str) -> list[dict[str, object]]:
    """What the version switcher of the theme reads."""
    entries: list[dict[str, object]] = []
    if (site / DEVELOPMENT).is_dir():
        entries.append(
            {"name": "development", "version": DEVELOPMENT, "url": f"{url}/{DEVELOPMENT}/"}
        )
    for place, name in enumerate(published_versions(site)):
        entry: dict[str, object] = {"name": name, "version": name, "url": f"{url}/{name}/"}
        if place == 0:
            entry |= {"name": f"{name} (stable)", "preferred": True}
        entries.append(entry)
    return entries


def publish(built: Path, site: Path, ref: str, url: str) -> Path:
    """Replace the folder of one version, then the list of versions and the front page.

    Args:
        built: The folder that `make docs` has written.
        site: The folder of the whole site.
        ref: The branch or tag that was built.
        url: Where the site is published, without a slash at its end.

    Returns:
        The folder of the version.
    """
    folder = site / version_folder(ref)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo*"))
    (site / ".nojekyll").touch()
    entries = json.dumps(switcher_entries(site, url), indent=2)
    (site / "switcher.json").write_text(f"{entries}\n", encoding="utf-8")
    newest = [*published_versions(site), DEVELOPMENT][0]
    (site / "index.html").write_text(FRONT_PAGE.format(folder=newest), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("built", type=Path, help="the folder that make docs has written")
    parser.add_argument("site", type=Path, help="the folder of the whole site")
    parser.add_argument("ref", help="the branch or tag that was built")
    arguments = parser.parse_args()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    url = project["project"]["urls"]["Documentation"]
    print(publish(arguments.built, arguments.site, arguments.ref, url))


if __name__ == "__main__":
    main()
