"""Files and output of fsdp-download: the hub's cache layout, plain folders, offline work, --verify, selections."""

import json
import os
import stat
import subprocess
import sys

import fsdp_cli
from download_cli import FOLDER, MIB, NAME, DownloadCase, random_bytes, tiny_files
from hub_server import COMMIT, Action, Repo, git_sha1

WEIGHTS = "model.safetensors"
PATHS = ["README.md", "config.json", "folder/empty.txt", WEIGHTS]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


class LayoutTest(DownloadCase):
    # --- the cache -------------------------------------------------------------------------------------------------------
    def test_the_cache_is_laid_out_as_huggingface_hub_does_it(self):
        result = self.download()
        self.assertEqual(result.out, f"{self.snapshot()}\n")
        self.assert_snapshot(PATHS)
        self.assertEqual((self.storage / "refs" / "main").read_bytes(), COMMIT.encode())
        for path in PATHS:
            up = "../" * (2 + path.count("/"))
            self.assertEqual(os.readlink(self.snapshot() / path), f"{up}blobs/{self.repo.hash(path)}")
        self.assertEqual({p.name for p in (self.storage / "blobs").iterdir()}, {self.repo.hash(p) for p in PATHS})
        tree = json.loads((self.storage / "trees" / f"{COMMIT}.json").read_text())
        self.assertEqual(tree["format_version"], 1)
        self.assertEqual(set(tree["files"]), set(self.repo.files))
        size = len(self.repo.files[WEIGHTS])
        self.assertEqual(tree["files"][WEIGHTS], {"size": size, "blob_id": self.repo.entry(WEIGHTS)["oid"], "lfs_size": size,
                                                  "lfs_sha256": self.repo.hash(WEIGHTS)})
        self.assertEqual(tree["files"]["config.json"], {"size": 24, "blob_id": git_sha1(self.repo.files["config.json"])})
        self.assertTrue((self.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55"))
        self.assertEqual([p for p in self.cache.rglob("*") if ".tmp" in p.name or "partial" == p.name and any(p.iterdir())], [])

    def test_file_modes_follow_the_umask(self):
        self.download(before=lambda: os.umask(0o027))
        for path in PATHS:
            self.assertEqual(stat.S_IMODE((self.snapshot() / path).stat().st_mode), 0o640)

    def test_a_second_run_asks_for_the_revision_only(self):
        self.download()
        seen = len(self.hub.requests())
        report = self.report()
        self.assertEqual([r.path for r in self.hub.requests()[seen:]], [f"/api/models/{NAME}/revision/main"])
        self.assertEqual(report["bytes_received"], 0)
        self.download("--revision", COMMIT)
        self.assertEqual(len(self.hub.requests()), seen + 1)

    def test_a_new_commit_fetches_what_changed(self):
        self.download()
        old = self.snapshot()
        files = {**self.repo.files, "config.json": b'{"model_type": "mistral"}\n'}
        self.hub.repos[("model", NAME)] = new = Repo(files, commit="a" * 40)
        self.assertEqual(self.report()["bytes_received"], len(files["config.json"]))
        self.assert_snapshot(PATHS, repo=new, snapshot=self.snapshot(new))
        self.assertEqual((self.storage / "refs" / "main").read_text(), "a" * 40)
        self.assertEqual((old / "config.json").read_bytes(), self.repo.files["config.json"])

    def test_revisions(self):
        self.repo.refs.update({"v1.0": 1, "refs/pr/5": 1})
        for revision in ("v1.0", "refs/pr/5"):
            self.download("--revision", revision)
            self.assertEqual((self.storage / "refs" / revision).read_text(), COMMIT)
        self.assertIn(f"/api/models/{NAME}/revision/refs/pr/5", [r.path for r in self.hub.requests()])
        for revision in ("../../evil", "", "a b", "/abs"):
            self.refused("--revision", revision, code=2, words=["--revision"])

    def test_long_listings_and_odd_names(self):
        files = {f"data/part {i:03} ü#?%.bin": b"x" * i for i in range(30)}
        self.serve({("model", NAME): Repo(files)}, page=7)
        self.download()
        self.assert_snapshot(files)

    def test_equal_contents_are_fetched_once(self):
        content = random_bytes(MIB)
        self.serve({("model", NAME): Repo({"a.bin": content, "b/a.bin": content})})
        for arguments, snapshot in (([], None), (["--local-dir", self.folder / "plain"], self.folder / "plain")):
            before = self.hub.served()
            self.download(*arguments)
            self.assert_snapshot(["a.bin", "b/a.bin"], snapshot)
            self.assertEqual(self.hub.served() - before, MIB)

    def test_without_symlinks(self):
        self.download(env={"HF_HUB_DISABLE_SYMLINKS": "1"})
        self.assert_snapshot(PATHS)
        self.assertFalse(any((self.snapshot() / p).is_symlink() for p in PATHS))
        self.download("--verify")
        self.download(env=OFFLINE)

    def test_where_the_cache_is(self):
        home = self.folder / "elsewhere"
        for env, cache in (({"HF_HUB_CACHE": "", "HF_HOME": str(home)}, home / "hub"),
                           ({"HF_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": str(home)}, home / "huggingface" / "hub"),
                           ({"HF_HUB_CACHE": "~/mine"}, self.folder / "mine")):
            out = self.download(env=env).out.strip()
            self.assertEqual(out, str(cache / FOLDER / "snapshots" / COMMIT))
        out = self.download("--cache-dir", self.folder / "given").out.strip()
        self.assertEqual(out, str(self.folder / "given" / FOLDER / "snapshots" / COMMIT))

    def test_a_blob_that_others_left_damaged_is_found(self):
        """huggingface_hub compares only sizes, so its files are hashed once."""
        blob = self.storage / "blobs" / self.repo.hash(WEIGHTS)
        blob.parent.mkdir(parents=True)
        content = bytearray(self.repo.files[WEIGHTS])
        content[100] ^= 1
        blob.write_bytes(content)
        result = self.download()
        self.assertIn("does not hold what the hub says", result.err)
        self.assert_snapshot(PATHS)
        blob.unlink()
        blob.write_bytes(self.repo.files[WEIGHTS])
        self.assertEqual(self.report()["bytes_received"], 0)

    def test_a_cache_that_may_only_be_read_serves_what_it_has(self):
        self.download()
        os.chmod(self.folder, 0o755)
        for path in [self.cache, *self.cache.rglob("*")]:
            if not path.is_symlink():
                os.chmod(path, 0o555 if path.is_dir() else 0o444)
        self.addCleanup(lambda: [os.chmod(p, 0o755) for p in [self.cache, *self.cache.rglob("*")] if p.is_dir()])
        # Modes bind root without its capabilities; another user might not reach the programs of a clone in /root.
        bound = ["setpriv", "--bounding-set", "-all"] if os.geteuid() == 0 else []
        for arguments, env in (([], {}), ([], OFFLINE), (["--verify"], OFFLINE)):
            result = fsdp_cli.run("fsdp-download", [NAME, *arguments], env=self.environment(**env), within=bound)
            self.assertEqual((result.code, result.out.strip()), (0, str(self.snapshot())), str(result))

    # --- output for scripts, reports -----------------------------------------------------------------------------------------
    def test_ready_mark_and_report(self):
        ready = self.storage / ".fsdp" / "ready" / COMMIT
        report = self.report("--include", "config.json")
        self.assertEqual(report["ready"], str(ready))
        self.assertEqual(ready.read_text(), f"{self.snapshot()}\n")
        self.assertEqual(report["files"], [{"path": "config.json", "size": 24, "was_there": False,
                                            "hash": self.repo.hash("config.json")}])
        self.assertEqual([report[k] for k in ("repo", "type", "revision", "commit", "bytes", "bytes_received")],
                         [NAME, "model", "main", COMMIT, 24, 24])
        self.hub.faults = [lambda r: Action(status=500) if r.host == "storage" else None]
        self.download("--retries", "1", code=1)
        self.assertFalse(ready.exists(), "ready although the last download failed")
        self.hub.faults = []
        self.download()
        self.assertTrue(ready.exists())

    def test_needs_neither_libtorch_nor_mpi(self):
        libraries = subprocess.run(["ldd", fsdp_cli.folder("FSDP_BIN") / "fsdp-download"], capture_output=True, text=True)
        self.assertIn("libcurl", libraries.stdout)
        self.assertNotRegex(libraries.stdout, "libtorch|libc10|libmpi|libcuda")

    def test_dry_run_fetches_nothing(self):
        self.download("--include", "config.json")
        result = self.download("--dry-run")
        self.assertRegex(result.out, r"there +config.json")
        self.assertRegex(result.out, rf"missing +{WEIGHTS}")
        report = self.report("--dry-run")
        self.assertEqual(report["bytes_to_fetch"], sum(len(self.repo.files[p]) for p in PATHS) - 24)
        self.assertEqual(self.hub.served(), 24)

    # --- offline and verification ----------------------------------------------------------------------------------------------
    def test_offline(self):
        self.refused(code=4, env=OFFLINE, words=["HF_HUB_OFFLINE", f"fsdp-download {NAME}"])
        self.download("--include", "*.json")
        self.download("--include", "*.json", env=OFFLINE)
        self.refused(code=4, env=OFFLINE, words=["3 of 4 files are not there", "README.md"])
        self.refused("--revision", "v2", code=4, env={**OFFLINE, "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "yes"},
                     words=["v2"])
        self.download()
        self.assertEqual(self.download(env=OFFLINE).out.strip(), str(self.snapshot()))

    def test_verify(self):
        self.refused("--verify", code=4, env=OFFLINE, words=["nothing to verify"])
        self.download()
        report = self.report("--verify", env=OFFLINE)
        self.assertEqual((report["files"], report["problems"], report["verified_against"]), (4, [], "manifest"))
        blob = self.storage / "blobs" / self.repo.hash(WEIGHTS)
        times = blob.stat()
        with open(blob, "r+b") as file:
            file.seek(MIB)
            file.write(b"\0")
            if self.repo.files[WEIGHTS][MIB] == 0:
                file.write(b"\1")
        os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a failing disk changes data
        (self.snapshot() / "config.json").unlink()
        self.assertEqual(self.report(env={})["bytes_received"], 0)  # size and time do not show the damage; the link is made again
        result = self.download("--verify", code=3, env=OFFLINE)
        self.assertEqual(len(result.errors()), 1, str(result))
        self.assertIn(f"{WEIGHTS} has the hash", result.err)
        self.assertFalse((self.storage / ".fsdp" / "ready" / COMMIT).exists())
        self.assertEqual(self.report()["bytes_received"], len(self.repo.files[WEIGHTS]))
        self.download("--verify", env=OFFLINE)
        os.truncate(blob, 5)
        (self.storage / "blobs" / self.repo.hash("config.json")).unlink()
        report = json.loads(self.download("--verify", "--json", code=3, env=OFFLINE).out)
        self.assertEqual([p["path"] for p in report["problems"]], ["config.json", WEIGHTS])
        self.download()
        self.assert_snapshot(PATHS)

    def test_verify_what_huggingface_hub_downloaded(self):
        """Without our manifest --verify uses the listing, and without a listing the names of the blobs."""
        self.download()
        for path, source in ((".fsdp", "listing"), ("trees", "blob names")):
            fsdp_cli.shutil.rmtree(self.storage / path)
            self.assertEqual(self.report("--verify", env=OFFLINE)["verified_against"], source)
        blob = self.storage / "blobs" / self.repo.hash("config.json")
        blob.write_bytes(blob.read_bytes()[::-1])
        self.download("--verify", code=3, env=OFFLINE)

    # --- plain folders -----------------------------------------------------------------------------------------------------------
    def test_local_folder(self):
        plain = self.folder / "plain"
        result = self.download("--local-dir", plain)
        self.assertEqual(result.out, f"{plain}\n")
        self.assert_snapshot(PATHS, plain)
        self.assertFalse(self.cache.exists())
        self.assertFalse(any(p.is_symlink() for p in plain.rglob("*")))
        lines = (plain / ".cache/huggingface/download/config.json.metadata").read_text().splitlines()
        self.assertEqual(lines[:2], [COMMIT, self.repo.hash("config.json")])
        self.assertGreater(float(lines[2]), 1e9)
        self.assertEqual(self.report("--local-dir", plain)["bytes_received"], 0)
        self.download("--local-dir", plain, env=OFFLINE)
        self.download("--local-dir", plain, "--verify", env=OFFLINE)
        (plain / "config.json").write_text("changed")
        self.download("--local-dir", plain, "--verify", code=3, env=OFFLINE)
        self.download("--local-dir", plain)
        self.assert_snapshot(PATHS, plain)
        self.refused("--local-dir", plain, "--cache-dir", self.cache, code=2, words=["--local-dir"])

    # --- selections ----------------------------------------------------------------------------------------------------------------
    def test_patterns(self):
        for arguments, paths in ((["--include", "*.json", "--include", "README*"], ["README.md", "config.json"]),
                                 (["--exclude", "*.safetensors", "--exclude", "folder/"],
                                  ["README.md", "config.json", "pytorch_model.bin"]),
                                 (["--include", "*.bin"], ["pytorch_model.bin"]),
                                 (["--all-formats", "--include", "*model*"], [WEIGHTS, "pytorch_model.bin"]),
                                 (["--max-files", "2"], ["README.md", "config.json"])):
            with self.subTest(arguments):
                report = self.report("--dry-run", *arguments)
                self.assertEqual([f["path"] for f in report["files"]], paths)
        self.refused("--include", "*.gguf", code=2, words=["none of the repository's 5 files"])
        self.assertIn("--all-formats", self.download("--dry-run").err)

    def test_presets(self):
        llama = {name: b"x" for name in (
            "LICENSE", "README.md", "USE_POLICY.md", "config.json", "generation_config.json", "tokenizer.json",
            "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
            "pytorch_model-00001-of-00003.bin", "pytorch_model.bin.index.json", "special_tokens_map.json",
            "tokenizer.model", "tokenizer_config.json")}
        chess = {f"chess_game_{i:04}.parquet": b"PAR1" for i in (1, 2, 5, 9)}
        self.serve({("model", "codellama/CodeLlama-7b-hf"): Repo(llama),
                    ("dataset", "laion/strategic_game_chess"): Repo({**chess, "README.md": b"#"})})
        report = self.report(repo="codellama/CodeLlama-7b-hf")
        left_out = {name for name in llama if name.endswith((".md", ".bin", ".bin.index.json")) or name == "LICENSE"}
        self.assertEqual({f["path"] for f in report["files"]}, set(llama) - left_out)
        report = self.report("--max-files", "2", repo="laion/strategic_game_chess")
        self.assertEqual([f["path"] for f in report["files"]], ["chess_game_0001.parquet", "chess_game_0002.parquet"])
        self.assertTrue(report["snapshot"].startswith(str(self.cache / "datasets--laion--strategic_game_chess")))
        self.assertEqual(report["type"], "dataset")

    def test_usage(self):
        for arguments, word in (([""], "repository"), (["a/b/c"], "repository"), (["../x"], "repository"),
                                ([NAME, "--type", "space"], "--type"), ([NAME, "--jobs", "0"], "--jobs"),
                                ([NAME, "--part-size", "1"], "--part-size"), ([], "repo")):
            result = fsdp_cli.run("fsdp-download", arguments, env=self.environment())
            self.assertEqual((result.code, len(result.errors())), (2, 1), str(result))
            self.assertIn(word, result.errors()[0])
        self.refused(code=2, env={"HF_ENDPOINT": "file:///etc"}, words=["HF_ENDPOINT"])
        self.refused(code=2, env={"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, words=["HF_HUB_DOWNLOAD_TIMEOUT"])
        self.assertIn("85", fsdp_cli.run("fsdp-download", ["--help"]).out)


class HuggingFaceTest(DownloadCase):
    """The Python libraries that share the cache, with all network access blocked."""

    def python(self, script, **env):
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                                env={n: v for n, v in {**os.environ, **self.environment(**OFFLINE, **env)}.items() if v},
                                timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_huggingface_hub_opens_the_cache(self):
        try:
            import huggingface_hub
        except ImportError as missing:
            self.skipTest(str(missing))
        fsdp_cli.say(f"huggingface_hub {huggingface_hub.__version__}")
        self.download("--all-formats")
        out = self.python(f"""
import huggingface_hub as hub
path = hub.snapshot_download("{NAME}")
file = hub.hf_hub_download("{NAME}", "folder/empty.txt")
cached = hub.scan_cache_dir()
repo, = cached.repos
print(path, file, repo.repo_id, len(repo.revisions), repo.nb_files, len(cached.warnings), sep="\\n")
""").split("\n")
        self.assertEqual(out[:6], [str(self.snapshot()), str(self.snapshot() / "folder/empty.txt"), NAME, "1", "5", "0"])
        # A partial download is recognised as partial.
        fsdp_cli.shutil.rmtree(self.cache)
        self.download("--include", "*.json")
        self.python(f"""
import huggingface_hub as hub
from huggingface_hub.errors import LocalEntryNotFoundError
hub.snapshot_download("{NAME}", allow_patterns="*.json")
try:
    hub.snapshot_download("{NAME}")
except LocalEntryNotFoundError:
    pass
else:
    raise SystemExit("an incomplete snapshot was taken for a complete one")
""")

    def test_transformers_opens_a_model(self):
        try:
            import torch
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        fsdp_cli.say(f"transformers {transformers.__version__}")
        torch.manual_seed(0)
        config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, vocab_size=97,
                                          num_attention_heads=4, num_key_value_heads=2)
        model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(self.folder / "model", max_shard_size="100KB")
        files = {p.name: p.read_bytes() for p in (self.folder / "model").iterdir()}
        self.assertGreater(len([name for name in files if name.endswith(".safetensors")]), 1)
        self.serve({("model", NAME): Repo({**files, "pytorch_model.bin": b"not to be fetched"})})
        self.download("--part-size", "64KiB")
        expected = model(torch.arange(8)[None]).logits.double().sum().item()
        out = self.python(f"""
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("{NAME}")
print(repr(model(torch.arange(8)[None]).logits.double().sum().item()))
""")
        self.assertEqual(float(out), expected)


if __name__ == "__main__":
    fsdp_cli.main()
