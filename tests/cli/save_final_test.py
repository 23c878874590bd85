"""Exports of --save-final-hf and --overwrite: they replace nothing but an earlier export of the program's own."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import fsdp_cli

RECORD = ".fsdp-export.json"


def snapshot(directory):
    """Returns the contents of every file below, except claims, which each start rewrites."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*"))
            if path.is_file() and ".owner" not in path.parts}


class Case(fsdp_cli.Case):
    def setUp(self):
        self.here = self.folder / self._testMethodName
        self.here.mkdir()

    def names(self, directory):
        return sorted(path.name for path in directory.iterdir())


class Refused(Case):
    """Refusals come before training starts, as one message for all ranks, and change nothing."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", cls.train_data, "--out-dir", cls.runs, "--run-name", "first", "--max-steps", 2,
                                                "--save-final-full", cls.folder / "first.pt", *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL])
        assert result.code == 0, str(result)
        # A model to start from: a Llama's configuration suffices, because no weights are read before the refusal.
        cls.model = cls.folder / "model"
        cls.model.mkdir()
        (cls.model / "config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 48, "num_attention_heads": 2,
            "vocab_size": fsdp_cli.VOCAB, "max_position_embeddings": fsdp_cli.SEQ_LEN}))
        (cls.model / "model.safetensors").write_bytes(b"the only copy")

    def refused(self, output, *words, name="second", arguments=None, ranks=0, cwd=None):
        before = snapshot(self.folder)
        arguments = arguments or self.train_arguments(name, "--max-steps", 1)
        result = fsdp_cli.run("fsdp-finetune", [*arguments, "--save-final-hf", output], ranks, cwd=cwd)
        self.assert_refused(result, 2, "--save-final-hf", *words)
        after = snapshot(self.folder)
        self.assertEqual(sorted(after), sorted(before))
        self.assertEqual(after, before)

    def test_a_folder_with_other_things(self):
        self.here.joinpath("notes.txt").write_text("years of work")
        self.refused(self.here, "holds 'notes.txt'", ranks=2)
        self.refused(f"{self.here}/", "holds 'notes.txt'")
        (self.folder / "way").symlink_to(self.here)
        self.refused(self.folder / "way", "holds 'notes.txt'")
        self.refused(".", "is no name for an output", cwd=self.here)
        (self.folder / "nowhere").symlink_to(self.folder / "missing")
        self.refused(self.folder / "nowhere", "leads nowhere")

    def test_the_model(self):
        arguments = ["--model", self.model, "--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "second", *fsdp_cli.COMMON]
        (self.folder / "link").symlink_to(self.model)
        for output in (self.model, f"{self.model}/", self.folder / "link", self.runs / ".." / "model"):
            self.refused(output, "is the folder of --model", arguments=arguments, ranks=2 if output == self.model else 0)
        self.refused(".", "no name", arguments=arguments, cwd=self.model)
        self.refused("model", "is the folder of --model", arguments=["--model", self.folder / "link", *arguments[2:]], cwd=self.folder)
        self.refused(self.folder, "holds the run's folder", arguments=arguments)

    def test_the_run_and_its_data(self):
        self.refused(self.runs / "second", "is the run's folder", self.runs / "second" / "hf", ranks=2)
        self.refused(self.runs, "holds the run's folder")
        self.refused(self.runs / "first", "is the run's folder", name="first")
        for name in ("checkpoints", "checkpoints/hf", "data", "metrics.jsonl", "previous-1/hf", ".hidden"):
            self.refused(self.runs / "first" / name, "keeps its own files", name="first")
        self.refused(self.runs / "first" / "checkpoints" / "step-00000002", "holds '")
        restart = self.train_arguments("second", "--restart-checkpoint-file", self.checkpoints("first") / "step-00000002", "--max-steps", 4)
        self.refused(self.checkpoints("first") / "step-00000002" / "hf", "lies in the checkpoint", arguments=restart)
        shutil.copy(self.train_data, self.here / "data.h5")
        arguments = self.train_arguments("second", "--max-steps", 1, "--train-data", self.here / "data.h5")
        self.refused(self.here, "holds the data of --train-data", arguments=arguments)
        (self.folder / "data-link").symlink_to(self.here)
        self.refused(self.folder / "data-link", "holds the data of --train-data", arguments=arguments)

    def test_one_file_over_an_input(self):
        for file, word in ((self.model / "model.safetensors", "lies in the folder of --model"),
                           (self.runs / "second" / "checkpoints" / "x.pt", "keeps its own files")):
            result = fsdp_cli.run("fsdp-finetune", ["--model", self.model, "--train-data", self.train_data, "--out-dir", self.runs, "--run-name", "second",
                                                    *fsdp_cli.COMMON, "--save-final-full", file], 2)
            self.assert_refused(result, 2, "--save-final-full", word)
        self.assertEqual((self.model / "model.safetensors").read_bytes(), b"the only copy")
        result = self.train("second", "--max-steps", 1, "--save-final-hf", self.here / "hf", "--save-final-full", self.here / "hf" / "a.pt", code=2)
        self.assert_refused(result, 2, "--save-final-full", "--save-final-hf")


class Owners(Case):
    """Exports of another run are replaced only by --overwrite; a run that goes on replaces its own."""

    def new_folder(self, name):
        """A folder in which a relative name leads to self.here/model."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "here").symlink_to(self.here)
        return folder

    def refused(self, name, option, output, *words, more=("--max-steps", 1), ranks=0):
        before = snapshot(self.folder)
        self.assert_refused(self.train(name, *more, option, output, ranks=ranks, code=2), 2, f"{option} {output}", "choose another name", "--overwrite", *words)
        self.assertEqual(snapshot(self.folder), before)

    def test_a_folder(self):
        hf = self.here / "model"
        self.train("one", "--max-steps", 2, "--save-final-hf", "here/model", "--out-dir", "../runs", cwd=self.new_folder("here"))
        self.refused("two", "--save-final-hf", hf, "is the export of the run", self.runs / "one", ranks=2)
        # Named from elsewhere, or by a link, it is the same run; a run that starts over is another one.
        self.train("one", "--restart", "latest", "--max-steps", 3, "--save-final-hf", os.path.relpath(hf))
        (self.folder / "link").symlink_to(self.runs)
        self.train("one", "--restart", "latest", "--out-dir", self.folder / "link", "--max-steps", 4, "--save-final-hf", hf)
        self.refused("one", "--save-final-hf", hf, "an earlier run of this name")
        self.train("two", "--max-steps", 1, "--save-final-hf", hf, "--overwrite")
        self.refused("one", "--save-final-hf", hf, "is the export of the run", self.runs / "two", more=("--restart", "latest", "--max-steps", 5))
        # A conversion names no run, and its folder may move with the runs.
        converted = self.here / "converted"
        result = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("two") / "latest", converted, "--to", "hf"])
        self.assertEqual(result.code, 0, str(result))
        self.refused("two", "--save-final-hf", converted, "names no run", more=("--restart", "latest", "--max-steps", 2))
        self.assertNotIn(str(self.folder), (hf / RECORD).read_text())

    def test_a_file(self):
        full = self.here / "model.pt"
        self.train("one-file", "--max-steps", 2, "--save-final-full", full)
        self.refused("two-files", "--save-final-full", full, "exists", ranks=2)
        self.refused("one-file", "--save-final-full", full, "exists")
        self.train("one-file", "--restart", "latest", "--max-steps", 3, "--save-final-full", full)
        self.train("two-files", "--max-steps", 1, "--save-final-full", full, "--overwrite")

    def test_the_runs_own_folder(self):
        """A recipe that is run again keeps what it made before, with the earlier run."""
        run = self.run_directory("again")
        outputs = ("--max-steps", 1, "--save-final-hf", run / "hf", "--save-final-full", run / "out" / "full.pt")
        self.train("again", *outputs)
        earlier = {name: data for name, data in snapshot(run).items() if name.startswith(("hf", "out"))}
        self.train("again", *outputs, "--seed", 7)
        self.assertEqual({name: data for name, data in snapshot(run / "previous-1").items() if name.startswith(("hf", "out"))}, earlier)
        self.assertNotEqual((run / "hf" / "model.safetensors").read_bytes(), earlier["hf/model.safetensors"])


class Replaced(Case):
    def test_an_export_is_replaced_by_the_next(self):
        hf = self.run_directory("run") / "hf"
        self.train("run", "--max-steps", 2, "--save-final-hf", hf, "--save-final-full", self.here / "run.pt")
        before = snapshot(hf)
        record = json.loads((hf / RECORD).read_text())
        self.assertEqual(record["files"], {name: len(data) for name, data in before.items() if name != RECORD})
        # The full .pt describes its model.
        converted = fsdp_cli.run("fsdp-ckpt-convert", [self.here / "run.pt", self.here / "of-run", "--to", "hf"])
        self.assertEqual(converted.code, 0, str(converted))
        self.assertEqual(json.loads((self.here / "of-run" / "config.json").read_text()), json.loads(before["config.json"]))
        # The chain continues from its one file and writes both exports again.
        self.train("run", "--restart-checkpoint-file", "latest", "--max-steps", 4, "--save-final-hf", hf, ranks=2)
        self.train("again", "--restart-checkpoint-file", self.here / "run.pt", "--max-steps", 4, "--save-final-full", self.here / "run.pt")
        after = snapshot(hf)
        self.assertEqual(sorted(after), sorted(before))
        self.assertNotEqual(after["model.safetensors"], before["model.safetensors"])
        (hf / "README.md").write_text("how it was made")
        result = self.train("run", "--restart-checkpoint-file", "latest", "--max-steps", 5, "--save-final-hf", hf, code=2)
        self.assert_refused(result, 2, "holds 'README.md'")
        self.assertFalse((self.checkpoints("run") / "step-00000005").exists(), "told before training")

    def test_shards_that_the_new_export_does_not_have(self):
        self.train("shards", "--max-steps", 1)
        source, hf = self.checkpoints("shards") / "latest", self.here / "hf"
        for sizes, files in ((["20KB"], 20), (["40KB"], 10), ([], 1)):
            size = ["--max-shard-size", *sizes] if sizes else []
            result = fsdp_cli.run("fsdp-ckpt-convert", [source, hf, "--to", "hf", "--overwrite", *size], 2)
            self.assertEqual(result.code, 0, str(result))
            shards = [name for name in self.names(hf) if name.endswith(".safetensors")]
            self.assertGreaterEqual(files, len(shards))
            self.assertEqual((hf / "model.safetensors.index.json").exists(), len(shards) > 1)
        self.assertEqual(shards, ["model.safetensors"])
        self.assertEqual(self.names(self.here), ["hf"])
        # A run's checkpoint and another program's model do not count as earlier exports.
        for other in (self.checkpoints("shards") / "step-00000001", self.folder):
            before = snapshot(other)
            result = fsdp_cli.run("fsdp-ckpt-convert", [hf, other, "--to", "dcp", "--overwrite"])
            self.assert_refused(result, 2, "no earlier export")
            self.assertEqual(snapshot(other), before)

    def test_kill_at_any_moment(self):
        """After a stop the directory holds all of the old export or all of the new one, and can be replaced again."""
        states = []
        for name, seed in (("a", 1), ("b", 2)):
            self.train(name, "--max-steps", 1, "--seed", seed)
            states.append(self.checkpoints(name) / "latest")
        hf, chance = self.here / "hf", random.Random(7)
        exports = []
        for i, state in enumerate(states):
            self.assertEqual(fsdp_cli.run("fsdp-ckpt-convert", [state, hf, "--to", "hf", "--overwrite", "--max-shard-size", f"{20 + 20 * i}KB"]).code, 0)
            exports.append(snapshot(hf))
        self.assertNotEqual(*exports)
        began = time.monotonic()
        fsdp_cli.run("fsdp-ckpt-convert", [states[0], hf, "--to", "hf", "--overwrite", "--max-shard-size", "20KB"])
        whole = time.monotonic() - began
        seen = set()
        for i in range(24):
            arguments = [states[i % 2], hf, "--to", "hf", "--overwrite", "--max-shard-size", f"{20 + 20 * (i % 2)}KB"]
            with subprocess.Popen(fsdp_cli.command("fsdp-ckpt-convert", arguments, 0), env=fsdp_cli.environment(), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as process:
                time.sleep(chance.uniform(0.5, 1.1) * whole)
                os.kill(process.pid, signal.SIGKILL)
            found = snapshot(hf)
            self.assertIn(found, exports)
            seen.add(exports.index(found))
        fsdp_cli.say(f"exports seen after a kill: {sorted(seen)}")
        result = fsdp_cli.run("fsdp-ckpt-convert", [states[0], hf, "--to", "hf", "--overwrite", "--max-shard-size", "20KB"])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(snapshot(hf), exports[0])


if __name__ == "__main__":
    fsdp_cli.main()
