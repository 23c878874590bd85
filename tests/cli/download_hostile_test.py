"""fsdp-download against a hub with a false listing, and in unusual environments."""

import gzip
import json

import fsdp_cli
from download_cli import NAME, DownloadCase, tiny_files
from hub_server import Action, Repo, times

HOSTILE = "\x1b]0;owned\x07\x9b31m"  # escape sequences for a window title and for red


class Hostile(DownloadCase):
    def answer(self, part, **action):
        self.hub.faults = [times(99, Action(**action), lambda r: part in r.path)]

    def test_sizes_that_no_file_has(self):
        entry = {"type": "file", "path": "a", "oid": "0" * 40}
        for size in (-1, -2**63, 1.5, "7", None, 2**63, 2**64 - 1, 2**50 + 1):
            for listed in ({**entry, "size": size}, {**entry, "size": 1, "lfs": {"oid": "0" * 64, "size": size}}):
                with self.subTest(size, lfs="lfs" in listed):
                    self.answer("/tree/", status=200, body=json.dumps([listed]).encode())
                    self.refused(code=4, words=["size" if not isinstance(size, int) or size < 0 else str(size)])
                    self.assertFalse((self.storage / ".fsdp" / "partial").exists())

    def test_pages_that_do_not_end(self):
        def page(entries, to):
            link = f'<{self.hub.url()}/api/models/{NAME}/tree/{self.repo.commit}?{to}>; rel="next"'
            return {"status": 200, "body": json.dumps(entries).encode(), "headers": {"Link": link}}

        directory = [{"type": "directory", "path": "d", "oid": "0" * 40, "size": 0}]
        self.answer("/tree/", **page(directory, "cursor=1"))  # each page leads to page 1
        self.refused(code=4, words=["does not end", "leads back"])
        self.assertLess(len(self.hub.requests()), 10)
        self.answer("/tree/", **page([], "cursor=1"))
        self.refused(code=4, words=["does not end", "without files"])
        self.answer("/tree/", **page([self.repo.entry("README.md")], "cursor=1"))
        self.refused(code=4, words=["README.md", "twice"])
        self.serve({("model", NAME): Repo(tiny_files())}, page=1)  # many valid pages
        self.download()

    def test_a_listing_that_is_cut_or_encoded_is_refused(self):
        names = sorted(self.repo.files)
        self.answer("/revision/", status=200, body=json.dumps({"sha": self.repo.commit, "siblings": [{"rfilename": n} for n in [*names, "lost.bin"]]}).encode())
        self.refused(code=4, words=["lost.bin", f"{len(names) + 1} files", f"lists {len(names)}"])
        entries = json.dumps([self.repo.entry(names[0])]).encode()
        self.answer("/tree/", status=200, body=entries, headers={"X-Total-Count": "5"})
        self.refused(code=4, words=["5 entries", "lists 1"])
        self.answer("/tree/", status=200, body=gzip.compress(entries), headers={"Content-Encoding": "gzip"})
        self.refused(code=4, words=["encoded as gzip", "/tree/"])
        self.answer(f"/resolve/{self.repo.commit}/{names[0]}", status=404)
        self.refused(code=4, words=[names[0], "404"])

    def test_the_rest_of_a_listing_in_any_spelling(self):
        names = sorted(self.repo.files)
        wanted = self.download("--cache-dir", self.folder / "whole", "--json").json()["files"]
        for spelling in ("rel=next", 'REL = "last next"', 'title="a>b, c"; rel="next"'):
            with self.subTest(spelling):
                def page(request, spelling=spelling):
                    if "/tree/" not in request.path:
                        return None
                    at = int(request.query.get("cursor", 0))
                    more = {"Link": f"<?cursor={at + 1}>; {spelling}"} if at + 1 < len(names) else {}
                    return Action(200, more, json.dumps([self.repo.entry(names[at])]).encode())
                self.hub.faults = [page]
                result = self.download("--cache-dir", self.folder / str(abs(hash(spelling))), "--json")
                self.assertEqual(len(result.json()["files"]), len(wanted))

    def test_what_a_server_says_is_shown_and_not_obeyed(self):
        texts = []
        self.answer("/revision/", status=500, headers={"X-Error-Message": "sorry " + HOSTILE})
        texts.append(self.download("--retries", "1", code=1))
        entry = {"type": "file", "path": "x" + HOSTILE, "oid": "0" * 40, "size": 1}
        self.answer("/tree/", status=200, body=json.dumps([entry]).encode())
        texts.append(self.download(code=4))
        self.answer("/tree/", status=200, body=b"\x1b[2J\x9b nonsense")
        texts.append(self.download(code=4))
        self.answer("/revision/", status=200, body=json.dumps({"sha": self.repo.commit, "id": "new" + HOSTILE}).encode())
        texts.append(self.download())
        self.hub.faults = [times(99, Action(headers={"Content-Encoding": "gz" + HOSTILE}), lambda r: r.host == "storage")]
        texts.append(self.download("--retries", "2", "--cache-dir", self.folder / "other", code=4))
        for result in texts:
            odd = [c for c in result.err + result.out if c != "\n" and (ord(c) < 32 or 0x7f <= ord(c) < 0xa0 or c == "\ufffd")]
            self.assertEqual(odd, [], repr(result.err))

    def test_credentials_of_the_endpoint_are_told_to_nobody(self):
        endpoint = self.hub.url().replace("://", "://robot:S3cretWord@")
        private = {("model", NAME): Repo(tiny_files(), gated=True), ("model", "org/private"): Repo({}, private=True)}
        said = []
        env = {"HF_ENDPOINT": endpoint}
        said.append(self.download("--json", env=env))
        self.hub.repos.update(private)
        said.append(self.download("--json", "--cache-dir", self.folder / "b", env=env, code=1))
        said.append(self.download(repo="org/private", env=env, code=4))
        said.append(self.download(repo="org/none", env=env, code=4))
        for wrong in ("http://robot:S3cretWord@127.0.0.1:9", "http://robot:S3cretWord@host:port",
                      "ftp://robot:S3cretWord@host", "http://robot:S3cret Word@host"):
            result = self.download("--retries", "1", "--cache-dir", self.folder / "c", env={"HF_ENDPOINT": wrong},
                                   code=1 if wrong.endswith(":9") else 2)
            said.append(result)
        for result in said:
            for part in ("S3cret", "robot"):
                self.assertNotIn(part, result.out + result.err)
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self.assertNotIn(b"S3cretWord", path.read_bytes(), path)

    def test_no_home(self):
        nowhere = {"HOME": "", "HF_HOME": "", "HF_HUB_CACHE": "", "XDG_CACHE_HOME": ""}
        self.refused(code=2, env=nowhere, words=["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME", "--cache-dir"])
        self.refused(code=2, env={**nowhere, "HF_HOME": "~/hf"}, words=["~/hf", "HOME is not set"])
        self.download("--cache-dir", self.cache, env=nowhere)
        self.download("--local-dir", self.folder / "plain", env=nowhere)

    # --- a cache that huggingface_hub made, offline ------------------------------------------------------------------
    def test_offline_in_a_cache_without_our_records(self):
        self.download()
        for name in (".fsdp", "trees"):
            (self.storage / name).rename(self.folder / name)
        offline = {"HF_HUB_OFFLINE": "1"}
        self.hub.__exit__()
        result = self.download(env=offline)
        self.assertEqual(result.out, f"{self.snapshot()}\n")
        self.assertEqual(self.download("--revision", self.repo.commit, env=offline).out, f"{self.snapshot()}\n")
        self.download("--verify", env=offline)
        report = self.report(env=offline)
        self.assertEqual({f["path"]: (f["size"], f["hash"], f["was_there"]) for f in report["files"]},
                         {p: (len(c), self.repo.hash(p), True) for p, c in self.repo.files.items() if p != "pytorch_model.bin"})
        self.assertEqual(report["bytes_to_fetch"], 0)
        # Without links, as on file systems that do not support them.
        plain = self.snapshot() / "config.json"
        content = plain.read_bytes()
        plain.unlink()
        plain.write_bytes(content)
        self.download(env=offline)
        (self.storage / "blobs" / self.repo.hash("README.md")).unlink()
        self.refused(code=4, env=offline, words=["README.md", "HF_HUB_OFFLINE"])
        self.download("--verify", env=offline, code=3)
        self.refused("--revision", "other", code=4, env=offline, words=["is not in"])


if __name__ == "__main__":
    fsdp_cli.main()
