"""kill -9 at random instants of every program that writes: existing files stay whole, new files are whole, and the same
command continues. 12 instants; FSDP_ALL=1: 100. (kill_test.py kills single ranks of a training run.)"""

import json
import random
import shutil
import time

import fsdp_cli
from convert_stop_test import large_safetensors
from download_cli import FOLDER, MIB, NAME, DownloadCase, random_bytes
from hub_server import Repo
from tokens_cli import DATA, documents

INSTANTS = {name: every if fsdp_cli.ALL else few for name, few, every in (
    ("train", 4, 33), ("convert", 3, 25), ("download", 2, 17), ("tokens", 2, 17), ("plan", 1, 8))}
CONVERT = "fsdp-ckpt-convert"


class KillCase(fsdp_cli.Case):
    def setUp(self):
        self.choice = random.Random(41)
        self.log = self.folder / "log"

    def timed(self, program, arguments, ranks=0):
        """Returns the duration of an undisturbed run in seconds."""
        begin = time.monotonic()
        result = fsdp_cli.run(program, arguments, ranks)
        self.assertEqual(result.code, 0, str(result))
        return time.monotonic() - begin

    def kill_within(self, seconds, program, arguments, ranks=0):
        """Starts a program and kills it with all its ranks; sometimes the program has already ended."""
        process = fsdp_cli.start(program, arguments, ranks, self.log)
        self.addCleanup(fsdp_cli.end_group, process)
        time.sleep(self.choice.uniform(0.02, 1.0) * seconds)
        fsdp_cli.end_group(process)
        process.wait(30)
        self.assertIn(process.returncode, (0, -9, 137), self.log.read_text())
        return process.returncode != 0

    def convert(self, *arguments, code=0):
        result = fsdp_cli.run(CONVERT, arguments)
        self.assertEqual(result.code, code, str(result))
        return result

    def is_equal(self, a, b):
        return fsdp_cli.run(CONVERT, ["--verify", a, b]).code == 0


class Train(KillCase):
    def arguments(self, steps, restart):
        hf, full = self.folder / "hf", self.folder / "full.pt"
        more = ["--max-steps", steps, "--save-every", 1, "--keep-last", 2, "--batch-size", 1, "--save-final-hf", hf,
                "--save-final-full", full]
        return self.train_arguments("killed", *more, *(["--restart-checkpoint-file", "latest"] if restart else []))

    def test_train(self):
        folder, found = self.checkpoints("killed"), 6
        seconds = self.timed("fsdp-finetune", self.arguments(found, False), 2)
        for _ in range(INSTANTS["train"]):
            self.kill_within(1.1 * seconds, "fsdp-finetune", self.arguments(found + 6, True), 2)
            self.convert("--check", folder / "latest")
            state = json.loads((folder / "latest" / "run.json").read_text())["state"]
            self.assertGreaterEqual(state["step"], found, "never an older checkpoint than before")
            if found == state["step"]:
                seconds *= 1.2  # no progress: allow more time, so that a slower machine does not kill only starts
            found = state["step"]
            self.assertTrue(fsdp_cli.records(self.run_directory("killed")), "every line of metrics.jsonl is JSON")
            for export in ("hf", "full.pt"):  # from this run or the previous one, but whole
                self.convert("--check", self.folder / export)
        self.assertEqual(fsdp_cli.run("fsdp-finetune", self.arguments(found + 2, True), 2).code, 0)
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("killed"))), found + 2)
        self.assertFalse(list(folder.glob(".*")), "nothing temporary is left")
        self.assertTrue(self.is_equal(self.folder / "full.pt", folder / "latest"))


class Convert(KillCase):
    TARGETS = {"pt": "out.pt", "safetensors": "out.safetensors", "hf": "out-hf", "dcp": "out-dcp"}

    def test_convert(self):
        size = 192 * MIB
        before, after = (large_safetensors(self.folder / f"{name}.safetensors", size) for name in ("before", "after"))
        with open(after, "r+b") as file:  # one number differs
            file.seek(size)
            file.write(b"\1")
        # Reading large sparse files takes no time, so only writing is timed.
        options = {"hf": ["--to", "hf", "--map", "none", "--max-shard-size", "50MB"], "dcp": ["--to", "dcp", "--shards", "3"]}
        seconds = self.timed(CONVERT, [before, self.folder / "first.pt"])
        for attempt in range(INSTANTS["convert"]):
            kind = list(self.TARGETS)[attempt % 4]
            fresh, old = self.folder / f"fresh-{self.TARGETS[kind]}", self.folder / f"old-{self.TARGETS[kind]}"
            self.kill_within(seconds, CONVERT, [after, fresh, *options.get(kind, [])])
            if fresh.exists():
                self.assertTrue(self.is_equal(after, fresh), f"{fresh} is there, so it is whole")
            self.convert(before, old, *options.get(kind, []), "--overwrite")
            self.kill_within(1.3 * seconds, CONVERT, [after, old, *options.get(kind, []), "--overwrite"])
            self.assertTrue(self.is_equal(before, old) or self.is_equal(after, old), f"{old}: the old one or the new one")
            self.convert(after, old, *options.get(kind, []), "--overwrite")
            for path in self.folder.iterdir():
                if "out" in path.name or path.name.startswith("."):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


class Download(DownloadCase):
    def test_download(self):
        files = {"config.json": b"{}", "tokenizer.json": random_bytes(300000, 1), "a/model.safetensors": random_bytes(6 * MIB, 2)}
        self.serve({("model", NAME): Repo(files)}, bytes_per_second=3 * MIB)
        choice = random.Random(43)
        for _ in range(INSTANTS["download"]):
            process = self.start("--jobs", "2", "--part-size", "1MiB")
            time.sleep(choice.uniform(0.01, 1.2))
            process.kill()
            process.wait()
            for path in (self.storage / "snapshots").glob("*/**/*"):
                if path.is_file():
                    name = str(path.relative_to(self.storage / "snapshots" / self.repo.commit))
                    self.assertEqual(path.read_bytes(), files[name], f"{name} is there, so it is whole")
            if choice.random() < 0.3:  # sometimes start from the beginning
                shutil.rmtree(self.cache)
        self.download()
        self.download("--verify")
        for name, content in files.items():
            self.assertEqual((self.cache / FOLDER / "snapshots" / self.repo.commit / name).read_bytes(), content)


class Outputs(KillCase):
    def test_tokens(self):
        source = self.folder / "large.jsonl"
        source.write_text((DATA / "chess" / "train.jsonl").read_text() * 12)
        output = self.folder / "out.h5"
        arguments = ["tokens", "--input", source, "--tokenizer", "gpt2", "--output", output]
        seconds = self.timed("fsdp-download", [*arguments, "--documents"])
        whole, old = output.read_bytes(), b"an earlier output"
        for attempt in range(INSTANTS["tokens"]):
            layout = ("--documents", "--pack")[attempt % 2]
            output.write_bytes(old)
            self.kill_within(1.1 * seconds, "fsdp-download", [*arguments, layout])
            if output.read_bytes() != old:
                documents(output) if layout == "--documents" else fsdp_cli.h5py.File(output)["input_ids"][()]
        fsdp_cli.run("fsdp-download", [*arguments, "--documents"])
        self.assertEqual(output.read_bytes(), whole)

    def test_plan(self):
        plan = self.folder / "plan.toml"
        arguments = ["--search", *fsdp_cli.TINY_MODEL, "--ranks", 2, "--memory", "4GiB", "--max-batch", 4, "--plan", plan]
        seconds = self.timed("fsdp-memprobe", arguments)
        whole, old = plan.read_text(), "# an earlier plan\n"
        for _ in range(INSTANTS["plan"]):
            plan.write_text(old)
            self.kill_within(1.1 * seconds, "fsdp-memprobe", arguments)
            self.assertIn(plan.read_text(), (old, whole))


if __name__ == "__main__":
    fsdp_cli.main()
