"""A power failure at any moment (power_loss.py): the disk holds either the old state or a whole new one."""

import json
import os
import shutil
import zlib

import fsdp_cli
from download_cli import FOLDER, NAME, DownloadCase, tiny_files
from hub_server import Repo
from power_loss import REORDERED, STRICT, Recorder
from tokens_cli import DATA, documents

if "FSDP_POWER_LOSS" not in os.environ:
    print("SKIPPED: tests/support/power_loss.c was not built")
    raise SystemExit(fsdp_cli.SKIPPED)


class PowerLossCase(fsdp_cli.Case):
    def setUp(self):
        self.disk, self.work = self.folder / self.id() / "disk", self.folder / self.id() / "work"
        self.disk.mkdir(parents=True)
        self.work.mkdir()

    def recorded(self, program, arguments, ranks=0):
        """Runs a program to its end; returns its Recorder."""
        recorder = Recorder(self.disk, self.work)
        result = fsdp_cli.run(program, arguments, ranks, env=recorder.environment(), cwd=self.disk)
        self.assertEqual(result.code, 0, str(result))
        return recorder

    def check(self, path):
        result = fsdp_cli.run("fsdp-ckpt-convert", ["--check", path])
        self.assertEqual(result.code, 0, str(result))


def whole_checkpoint(directory):
    """Returns True if every file that run.json names is there with its size and, if it is a file's, its checksum."""
    try:
        files = json.loads((directory / "run.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError):
        return False
    paths = {name: directory / name for name in files}
    return ".metadata" in files and all(
        path.is_file() and path.stat().st_size == files[name]["size_bytes"] and
        zlib.crc32(path.read_bytes()) == files[name]["crc32"] for name, path in paths.items())


class Train(PowerLossCase):
    def test_train(self):
        arguments = self.train_arguments("run", "--max-steps", 4, "--save-every", 1, "--keep-last", 2, "--batch-size", 1,
                                         "--save-final-hf", self.disk / "hf", "--save-final-full", self.disk / "full.pt",
                                         "--out-dir", self.disk / "runs")
        recorder = self.recorded("fsdp-finetune", arguments, 2)
        seen, steps = 0, {STRICT: [], REORDERED: []}
        for mode, where, state in recorder.states():
            latest = state / "runs" / "run" / "checkpoints" / "latest"
            if latest.is_symlink():
                self.assertTrue(whole_checkpoint(latest), where)
                steps[mode].append(int(os.readlink(latest)[5:]))
                self.assertEqual(steps[mode], sorted(steps[mode]), where)
            else:
                self.assertFalse(steps[mode], f"there was a checkpoint, now there is none; {where}")
            for export in ("hf", "full.pt"):
                if (state / export).exists():
                    self.check(state / export)
                    seen += 1
        self.assertEqual(steps[STRICT][-1], 4)
        self.assertEqual(steps[REORDERED][-1], 4)
        self.assertGreater(seen, 0)
        for _, state in recorder.finals():
            for export in ("hf", "full.pt"):
                self.check(state / export)
            self.evaluate(state / "runs" / "run" / "checkpoints" / "latest", "--data", self.val_data)


class Convert(PowerLossCase):
    def setUp(self):
        super().setUp()
        self.train("small", "--max-steps", 1, "--batch-size", 1, "--save-every", 1)
        self.first = self.checkpoints("small") / "latest"
        self.train("other", "--max-steps", 2, "--batch-size", 1, "--save-every", 2)
        self.second = self.checkpoints("other") / "latest"

    def is_equal(self, a, b, *more):
        return fsdp_cli.run("fsdp-ckpt-convert", ["--verify", a, b, *more]).code == 0

    def test_sync(self):
        """--sync: after a power failure at any time the output is the old or the new one, and whole."""
        for name, options in (("out.pt", []), ("out", ["--to", "dcp", "--shards", 2])):
            output = self.disk / name
            whole = [self.folder / f"{kind}-{name}" for kind in ("first", "second")]
            for checkpoint, copy in zip((self.first, self.second), whole):
                result = fsdp_cli.run("fsdp-ckpt-convert", [checkpoint, copy, *options])
                self.assertEqual(result.code, 0, str(result))
            for overwrite in (False, True):
                with self.subTest(name, overwrite=overwrite):
                    shutil.rmtree(self.disk)
                    self.disk.mkdir()
                    (self.work / "operations").unlink(missing_ok=True)
                    if overwrite:
                        self.assertEqual(fsdp_cli.run("fsdp-ckpt-convert", [self.first, output, *options]).code, 0)
                    how = ["--sync", *(["--overwrite"] if overwrite else [])]
                    recorder = self.recorded("fsdp-ckpt-convert", [self.second, output, *options, *how])
                    for _, where, state in recorder.states():
                        there = state / name
                        if not there.exists():
                            self.assertFalse(overwrite, f"neither the old output nor the new one; {where}")
                            continue
                        self.assertTrue(self.is_equal(there, whole[1]) or overwrite and self.is_equal(there, whole[0]), where)
                    for mode, state in recorder.finals():
                        self.assertTrue(self.is_equal(state / name, whole[1]), f"done is done: {mode}")


class Outputs(PowerLossCase):
    def test_tokens(self):
        for layout in ("--documents", "--pack"):
            with self.subTest(layout):
                output = self.disk / "out.h5"
                output.write_bytes(b"old")
                (self.work / "operations").unlink(missing_ok=True)
                recorder = self.recorded("fsdp-download", ["tokens", "--input", DATA / "shakespeare" / "test.csv", "--tokenizer",
                                                           "gpt2", "--output", output, layout])
                for _, where, state in recorder.states():
                    self.assertIn((state / "out.h5").read_bytes(), (b"old", output.read_bytes()), where)
                for mode, state in recorder.finals():
                    self.assertEqual((state / "out.h5").read_bytes(), output.read_bytes(), f"done is done: {mode}")
        self.assertTrue(fsdp_cli.h5py.File(output)["input_ids"].shape[0])

    def test_plan(self):
        plan = self.disk / "plan.toml"
        plan.write_text("old")
        recorder = self.recorded("fsdp-memprobe", ["--search", *fsdp_cli.TINY_MODEL, "--ranks", 2, "--memory", "4GiB",
                                                   "--max-batch", 4, "--plan", plan])
        for _, where, state in recorder.states():
            self.assertIn((state / "plan.toml").read_text(), ("old", plan.read_text()), where)
        for mode, state in recorder.finals():
            self.assertEqual((state / "plan.toml").read_text(), plan.read_text(), f"done is done: {mode}")


class Download(DownloadCase):
    def recorded(self, disk, work, *arguments, **environment):
        recorder = Recorder(disk, work)
        self.download(*arguments, env={**recorder.environment(), **environment})
        return recorder

    def test_cache(self):
        for name, more in (("links", {}), ("copies", {"HF_HUB_DISABLE_SYMLINKS": "1"})):
            disk, work = self.folder / name / "disk", self.folder / name / "work"
            disk.mkdir(parents=True)
            work.mkdir()
            files = tiny_files(300000)
            self.serve({("model", NAME): Repo(files)})
            commit = self.repo.commit
            recorder = self.recorded(disk, work, "--all-formats", "--jobs", "1", "--cache-dir", disk, **more)
            for _, where, state in recorder.states():
                storage = state / FOLDER
                for path in files:
                    blob, shown = storage / "blobs" / self.repo.hash(path), storage / "snapshots" / commit / path
                    for there in (blob, shown):
                        if there.is_file():
                            self.assertEqual(there.read_bytes(), files[path], f"{path}: {where}")
                ready = (storage / ".fsdp" / "ready" / commit).exists()
                missing = [path for path in files if not (storage / "snapshots" / commit / path).is_file()]
                self.assertFalse(ready and missing, f"ready, but {missing} are missing: {name}, {where}")
            for mode, state in recorder.finals():
                for path, content in files.items():
                    shown = state / FOLDER / "snapshots" / commit / path
                    self.assertTrue(shown.is_file() and shown.read_bytes() == content, f"done is done: {path}, {name}, {mode}")
                self.assertTrue((state / FOLDER / ".fsdp" / "ready" / commit).exists(), mode)
                self.assertEqual((state / FOLDER / "refs" / "main").read_text().strip(), commit, mode)


if __name__ == "__main__":
    fsdp_cli.main()
