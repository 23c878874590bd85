"""Shared by download_*_test.py: a folder, a hub, fsdp-download with a clean environment, and checks of its files."""

import json
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
import unittest
import zlib

import fsdp_cli
from hub_server import HubServer, Repo

NAME = "org/tiny"
FOLDER = "models--org--tiny"
MIB = 1 << 20


def random_bytes(count, seed=0):
    return random.Random(seed).randbytes(count)


def tiny_files(large=3 * MIB + 17):
    return {"config.json": b'{"model_type": "llama"}\n', "README.md": b"# tiny\n", "folder/empty.txt": b"",
            "model.safetensors": random_bytes(large, 1), "pytorch_model.bin": random_bytes(20000, 2)}


class DownloadCase(unittest.TestCase):
    """A test with a folder and a hub of its own; self.repo is org/tiny."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-download."))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.cache = self.folder / "hub"
        self.storage = self.cache / FOLDER
        self.serve({("model", NAME): Repo(tiny_files())})

    def serve(self, repos, **how):
        if hasattr(self, "hub"):
            self.hub.__exit__()
        self.hub = HubServer(repos, **how)
        self.addCleanup(self.hub.__exit__)
        self.repo = repos.get(("model", NAME))

    def environment(self, **more):
        clean = {"HF_HOME": str(self.folder / "home"), "HF_HUB_CACHE": str(self.cache), "HF_ENDPOINT": self.hub.url(),
                 "HOME": str(self.folder)}
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_SYMLINKS", "http_proxy",
                     "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HF_TOKEN_PATH",
                     "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_CACHE", "SSL_CERT_FILE", "CURL_CA_BUNDLE",
                     "REQUESTS_CA_BUNDLE", "HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            clean[name] = ""
        return {**clean, "no_proxy": "", **more}

    def download(self, *arguments, repo=NAME, code=0, env=None, **how):
        """Runs the download to its end with short retry delays; checks the exit code."""
        result = fsdp_cli.run("fsdp-download", [repo, "--retry-delay", "0.02", *arguments],
                              env=self.environment(**(env or {})), **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def start(self, *arguments, repo=NAME, env=None):
        line = fsdp_cli.command("fsdp-download", [repo, "--retry-delay", "0.02", *arguments], 0)
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=fsdp_cli.environment(self.environment(**(env or {}))))
        self.addCleanup(self.reap, process)
        return process

    @staticmethod
    def reap(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def until(self, condition, seconds=30, what="the condition"):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what} did not come about in {seconds} s")
            time.sleep(0.005)

    def refused(self, *arguments, code, words, **how):
        """Expects one error message that names all `words`."""
        result = self.download(*arguments, code=code, **how)
        errors = result.errors()
        self.assertEqual(len(errors), 1, str(result))
        for word in words:
            self.assertIn(word, errors[0])
        return result

    def snapshot(self, repo=None):
        return self.storage / "snapshots" / (repo or self.repo).commit

    def assert_snapshot(self, paths, snapshot=None, repo=None):
        """Expects exactly these files, bit by bit as on the hub."""
        snapshot, repo = snapshot or self.snapshot(), repo or self.repo
        found = {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if not p.is_dir()
                 and ".cache" not in p.relative_to(snapshot).parts}
        self.assertEqual(found, set(paths))
        for path in paths:
            self.assertEqual((snapshot / path).read_bytes(), repo.files[path], path)

    def partial(self, path):
        """Returns the folder with claims and parts of a file."""
        return self.storage / ".fsdp" / "partial" / self.repo.hash(path)

    def verified_ranges(self, path):
        """Returns (begin, end) of the ranges that the journals on disk record as complete, checked against the data."""
        found = []
        for part in self.partial(path).glob("part.*"):
            journal, data = part / "journal", part / "data"
            try:
                content, lines = data.read_bytes(), journal.read_text().split("\n")[1:-1]
            except FileNotFoundError:  # not there yet, or removed since the file is complete
                continue
            for line in lines:
                begin, end, crc = line.split(" ")
                piece = content[int(begin):int(end)]
                if len(piece) == int(end) - int(begin) and zlib.crc32(piece) == int(crc, 16):
                    found.append((int(begin), int(end)))
        return found

    def report(self, *arguments, **how):
        return json.loads(self.download("--json", *arguments, **how).out)
