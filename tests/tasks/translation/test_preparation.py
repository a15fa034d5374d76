"""IWSLT14 and Multi30k: from the archive's own format, from a folder that fairseq's script left, from real data."""

import http.server
import io
import shutil
import tarfile
import threading

import pytest

from pipemare_exp.data import bitext, fetch, iwslt14, moses_corpus, multi30k
from pipemare_exp.errors import UserError

TAGS = {
    "de": [
        "<url>http://www.ted.com/talks/a.html</url>",
        "<keywords>talks, Natur</keywords>",
        "<talkid>535</talkid>",
        "<title>Al Gore über die Klimakrise</title>",
        "<description>Mit Humor &amp; Kraft.</description>",
        "Vielen Dank, Chris!",
        "",
        "Das ist so lang " + "und lang " * 90,
        "Kurz.",
    ],
    "en": [
        "<url>http://www.ted.com/talks/a.html</url>",
        "<keywords>talks, nature</keywords>",
        "<talkid>535</talkid>",
        "<title>Al Gore on the climate crisis</title>",
        "<description>With humour &amp; strength.</description>",
        "Thank you, Chris!",
        "This has no German side.",
        "That is so long " + "and long " * 90,
        "This is much longer than the other side is.",
    ],
}
MORE = [(f"Es gibt {n} Häuser.", f"There are {n} houses.") for n in range(100, 145)]


def archive(path):
    """A made-up archive in WIT3's format: three documents' worth of tags, and five small XML test sets."""
    files = {}
    for side, language in enumerate(("de", "en")):
        lines = TAGS[language] + [pair[side] for pair in MORE]
        files[f"train.tags.de-en.{language}"] = "\n".join(lines) + "\n"
        for number, part in enumerate(iwslt14.TESTS):
            words = ("Die Nummer", "The number")[side]
            files[f"IWSLT14.{part}.de-en.{language}.xml"] = (
                '<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<doc docid="1" genre="lectures">\n'
                "<title>Nicht dabei</title>\n"
                f'<seg id="1"> {words} {number} &amp; mehr. </seg>\n'
                f'<seg id="2">Das ist Peter’s.</seg>\n</doc>\n</mteval>\n'
            )
        files[f"IWSLT14.TED.tst2099.de-en.{language}.xml"] = '<seg id="1">Anderes Jahr.</seg>\n'
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"de-en/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def test_archive_becomes_fairseqs_folder(tmp_path, capsys, monkeypatch):
    archive(tmp_path / iwslt14.ARCHIVE)
    monkeypatch.setattr(iwslt14, "MERGES", 50)
    said = iwslt14.prepare(tmp_path, url="http://127.0.0.1:9/never-asked")
    made = {
        (split, side): bitext.read_lines(tmp_path / iwslt14.FOLDER / "tmp" / f"{split}.{side}")
        for split in ("train", "valid", "test")
        for side in ("de", "en")
    }
    # Three lines pass of the nine with tags (title, description, thanks): the empty one, the one of 184 words and
    # the pair with a ratio above 1.5 do not. 48 pairs: the 23rd and the 46th are for validation. Entities are not
    # resolved, so that Moses escapes them again, as in the published preparation ("&amp; lt ; em &amp; gt ;" there).
    kept = ["al gore über die klimakrise", "mit humor &amp; amp ; kraft .", "vielen dank , chris !"]
    kept += [f"es gibt {n} häuser ." for n in range(100, 145)]
    assert made["train", "de"] == [line for k, line in enumerate(kept, 1) if k not in (23, 46)]
    assert made["valid", "de"] == [kept[22], kept[45]]
    assert made["valid", "en"] == ["there are 119 houses .", "there are 142 houses ."]
    assert made["train", "en"][:3] == [
        "al gore on the climate crisis", "with humour &amp; amp ; strength .", "thank you , chris !"
    ]  # fmt: skip
    tests = [line for n in range(5) for line in (f"the number {n} &amp; amp ; mehr .", "das ist peter &apos;s .")]
    assert made["test", "en"] == tests
    assert bitext.read_lines(tmp_path / iwslt14.FOLDER / "tmp" / "test.raw.en")[:2] == [
        "The number 0 &amp; mehr.", "Das ist Peter's."
    ]  # fmt: skip
    assert (tmp_path / iwslt14.FOLDER / "code").read_text().startswith("#version: 0.2\n")
    assert "46 train, 2 valid, 10 test pairs" in said
    warnings = capsys.readouterr().err.splitlines()
    assert "warning: iwslt14 train has 46 pairs, the published preparation has 160,239" in warnings
    assert len(warnings) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        iwslt14.ARCHIVE, iwslt14.ARCHIVE + ".sha256", iwslt14.FOLDER
    ]  # fmt: skip
    assert "is there: 46 train" in iwslt14.prepare(tmp_path)
    text = iwslt14.bitext(tmp_path)
    assert text.codes is not None and text.full_train == 160_239
    assert bitext.binarise(text, tmp_path).raw_references()[0] == "The number 0 &amp; mehr."


def test_an_archive_that_lacks_a_file_leaves_nothing(tmp_path):
    with tarfile.open(tmp_path / iwslt14.ARCHIVE, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("de-en/README"))
    with pytest.raises(UserError, match="lacks IWSLT14.TED.dev2010.de-en.de.xml"):
        iwslt14.prepare(tmp_path)
    (tmp_path / iwslt14.ARCHIVE).write_bytes(b"no archive")
    (tmp_path / (iwslt14.ARCHIVE + ".sha256")).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        iwslt14.prepare(tmp_path)
    assert not (tmp_path / iwslt14.FOLDER).exists()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_cleaning_at_its_limits():
    def pair(a, b):
        return "a " * a, "b " * b

    cases = {(1, 1): True, (175, 175): True, (176, 175): False, (0, 0): False, (3, 2): True, (2, 3): True,
             (4, 2): False, (16, 10): False, (15, 10): True, (1, 0): False}  # fmt: skip
    for (a, b), kept in cases.items():
        assert bool(moses_corpus.clean([pair(a, b)], 175, 1.5)) is kept, (a, b)


def fairseq_folder(root, phrases, stage):
    folder = root / iwslt14.FOLDER
    (folder / "tmp").mkdir(parents=True)
    for split, pairs in phrases.items():
        for side, language in enumerate(("de", "en")):
            home = folder if stage == "bpe" else folder / "tmp"
            bitext.write_lines(home / f"{split}.{language}", [pair[side].replace("ei", "e@@ i") if stage == "bpe"
                                                              else pair[side] for pair in pairs])  # fmt: skip
    return folder


def test_starts_from_tokenised_text_and_codes(tmp_path, phrases, capsys):
    folder = fairseq_folder(tmp_path, phrases, "tokenised")
    (folder / "code").write_text("#version: 0.2\nu n\nun d</w>\n")
    assert "300 train, 40 valid, 40 test" in iwslt14.prepare(tmp_path)
    assert "published preparation has 160,239" in capsys.readouterr().err
    made = bitext.binarise(iwslt14.bitext(tmp_path), tmp_path)
    assert (made.folder / "code").read_text() == (folder / "code").read_text()
    assert made.tokenised("test", "en") == [english for _, english in phrases["test"]]
    learned = iwslt14.bitext(tmp_path, merges=30)
    assert learned.codes is None and bitext.binarise(learned, tmp_path).folder != made.folder
    (folder / "code").write_text("#version: 0.2\nu n\n")
    assert bitext.binarise(iwslt14.bitext(tmp_path), tmp_path).folder != made.folder
    assert iwslt14.bitext(folder).fingerprint == iwslt14.bitext(tmp_path).fingerprint


def test_starts_from_finished_bpe_text(tmp_path, phrases):
    fairseq_folder(tmp_path, phrases, "bpe")
    text = iwslt14.bitext(tmp_path)
    assert text.segmented
    made = bitext.binarise(text, tmp_path)
    assert "e@@ " in (made.folder / "dict.de.txt").read_text()
    assert made.tokenised("valid", "de") == [german for german, _ in phrases["valid"]]
    assert made.encoder() is None


def test_missing_data_says_where_it_goes(tmp_path):
    with pytest.raises(UserError, match="pipemare data prepare iwslt14"):
        iwslt14.bitext(tmp_path)
    with pytest.raises(UserError, match="lacks train.de, train.en, val.de"):
        multi30k.bitext(tmp_path)
    (tmp_path / iwslt14.FOLDER / "tmp").mkdir(parents=True)
    with pytest.raises(UserError, match="move it away"):
        iwslt14.prepare(tmp_path)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `body` with or without ranges; breaks off after `stop` bytes where that is set."""

    body, ranges, stop = bytes(range(256)) * 2000, True, None

    def do_GET(self):
        type(self).asked.append(self.headers.get("Range"))
        start = 0
        if self.ranges and self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= len(self.body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(self.body)}")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.body) - start))
        self.end_headers()
        self.wfile.write(self.body[start : self.stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield handler, f"http://127.0.0.1:{running.server_port}/de-en.tgz"
        running.shutdown()
        thread.join()


def test_download_goes_on_where_it_stopped(server, tmp_path):
    handler, url = server
    path, said = tmp_path / "de-en.tgz", []
    handler.stop = 300_000
    with pytest.raises(UserError, match="300,000 of 512,000 bytes; run the command again"):
        fetch.fetch(url, path, said.append)
    assert not path.exists()
    handler.stop = None
    assert fetch.fetch(url, path, said.append).read_bytes() == handler.body
    assert handler.asked == [None, "bytes=300000-"]
    record = (tmp_path / "de-en.tgz.sha256").read_text()
    assert record.split()[1] == "de-en.tgz" and any("recorded on first use" in line for line in said)
    fetch.fetch(url, path, said.append)
    assert len(handler.asked) == 2, "a file that is there was asked for again"
    path.write_bytes(b"other")
    with pytest.raises(UserError, match="recorded " + record.split()[0]):
        fetch.fetch(url, path, said.append)


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    handler, url = server
    handler.ranges = False
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    assert fetch.fetch(url, tmp_path / "f", lambda text: None).read_bytes() == handler.body


def test_a_whole_part_needs_nothing_more(server, tmp_path):
    handler, url = server
    (tmp_path / "f.part").write_bytes(handler.body)
    assert fetch.fetch(url, tmp_path / "f", lambda text: None).read_bytes() == handler.body
    (tmp_path / "g.part").write_bytes(handler.body + b"more")
    with pytest.raises(UserError, match="did not fit"):
        fetch.fetch(url, tmp_path / "g", lambda text: None)
    assert not (tmp_path / "g.part").exists()


def test_no_network_says_how_to_go_on(tmp_path):
    with pytest.raises(UserError, match="put it at .*de-en.tgz"):
        fetch.fetch("http://127.0.0.1:9/de-en.tgz", tmp_path / "de-en.tgz", lambda text: None)


def test_real_folder(data_root, tmp_path, capsys):
    """The official valid and test sets and a part of train, as fairseq's script leaves them."""
    if not (data_root / iwslt14.FOLDER).is_dir():
        pytest.skip(f"no {iwslt14.FOLDER} in {data_root}")
    said = iwslt14.prepare(data_root)
    assert "7,283 valid, 6,750 test" in said
    assert "valid has" not in capsys.readouterr().err
    text = iwslt14.bitext(data_root)
    assert text.codes is not None and len(text.codes.read_text().splitlines()) == 10_001
    for split in ("valid", "test"):
        lengths = [len(text.lines(split, side)) for side in ("de", "en")]
        assert lengths == [iwslt14.PUBLISHED[split]] * 2


def test_real_captions(data_root, tmp_path):
    if not (data_root / multi30k.FOLDER).is_dir():
        pytest.skip(f"no {multi30k.FOLDER} in {data_root}")
    (tmp_path / multi30k.FOLDER).mkdir()
    for name in multi30k.FILES.values():
        for side in ("de", "en"):
            whole = bitext.read_lines(data_root / multi30k.FOLDER / f"{name}.{side}")
            assert len(whole) == {"train": 29_000, "val": 1_014, "test2016": 1_000}[name]
            bitext.write_lines(tmp_path / multi30k.FOLDER / f"{name}.{side}", whole[:200])
    made = bitext.binarise(multi30k.bitext(tmp_path, merges=100), tmp_path)
    assert made.raw_references()[0] == "A man in an orange hat starring at something."
    assert made.tokenised("test", "en")[0] == "a man in an orange hat starring at something ."
    shutil.rmtree(tmp_path / "binarised")
