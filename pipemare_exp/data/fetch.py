"""Fetch one file over HTTP, going on where an interrupted download stopped, and remember its checksum."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from pipemare_exp.data.cache import atomic_write, make_folder, sha256
from pipemare_exp.errors import UserError

BLOCK = 1 << 16
TIMEOUT = 60  # seconds without a byte


def fetch(url: str, path: Path, report: Callable[[str], None] = print) -> Path:
    """`path`, downloaded from `url` if it is not there; its SHA-256 is in `<path>.sha256`.

    A download grows in `<path>.part`. Where that exists, only the rest is asked for (HTTP range); a server that
    answers with the whole file starts it anew. The checksum is nowhere published for the files we fetch: it is
    recorded when a file is first complete, and compared whenever it is used again. Raises UserError with what to do.
    """
    make_folder(path.parent)
    if not path.exists():
        _download(url, path.with_name(path.name + ".part"), report)
        os.replace(path.with_name(path.name + ".part"), path)
    return check(path, report)


def check(path: Path, report: Callable[[str], None] = print) -> Path:
    """`path`, after comparing its SHA-256 with the recorded one, or recording it on first use."""
    record, found = path.with_name(path.name + ".sha256"), sha256(path)
    if not record.exists():
        with atomic_write(record, "w") as file:
            file.write(f"{found}  {path.name}\n")
        report(f"{path.name}: SHA-256 {found} (recorded on first use)")
        return path
    expected = record.read_text(encoding="utf-8").split()[:1]
    if expected != [found]:
        raise UserError(
            f"{path} has SHA-256 {found}, but {record.name} recorded {''.join(expected) or 'nothing'}; delete both to "
            "fetch it again, or only the record if the new file is meant"
        )
    return path


def _download(url: str, part: Path, report: Callable[[str], None]) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = have > 0 and answer.status == http.client.PARTIAL_CONTENT
            length = answer.headers.get("Content-Length")
            total = None if length is None else int(length) + (have if resumed else 0)
            size = "of unknown size" if total is None else f"of {total:,} bytes"
            report(f"fetching {url}, {size}" + (f", from byte {have:,} on" if resumed else ""))
            with open(part, "ab" if resumed else "wb") as file:
                while block := answer.read(BLOCK):
                    file.write(block)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and _complete(error, have):
            return
        if have and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise UserError(f"{part} did not fit what {url} offers and was removed; run the command again") from error
        raise UserError(f"cannot fetch {url}: HTTP {error.code} {error.reason}; {_by_hand(part)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UserError(f"cannot fetch {url}: {error}; {_by_hand(part)}") from error
    if total is not None and part.stat().st_size != total:
        raise UserError(
            f"the download of {url} ended after {part.stat().st_size:,} of {total:,} bytes; run the command again, it "
            "goes on from there"
        )


def _complete(error: urllib.error.HTTPError, have: int) -> bool:
    """Whether a refused range says that nothing is missing: "Content-Range: bytes */TOTAL" with TOTAL in hand."""
    return error.headers.get("Content-Range", "").endswith(f"/{have}")


def _by_hand(part: Path) -> str:
    place = part.with_name(part.name.removesuffix(".part"))
    return f"run the command again to go on, or fetch it by other means and put it at {place}"
