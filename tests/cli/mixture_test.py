"""Mixtures: shares at every prefix, the same samples on any ranks and after restarts with other weights and sources, what the log and the metrics
tell of each source, and what is refused."""

import json
import shutil

import fsdp_cli
import h5py
import numpy

ROWS = {"a": 60, "b": 25, "c": 9}
SHARES = {"a": 0.7, "b": 0.2, "c": 0.1}


class Mixture(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for seed, (name, rows) in enumerate(ROWS.items()):
            fsdp_cli.write_tokens(cls.folder / f"{name}.h5", fsdp_cli.random_tokens(rows=rows, seed=seed))
        cls.mixture = [cls.word(name, share) for name, share in SHARES.items()]

    @classmethod
    def word(cls, name, weight):
        return f"{cls.folder / name}.h5:{weight}"

    def tune(self, name, data, *more, ranks=0, code=0):
        arguments = ["--train-data", *data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *more]
        if "--restart" not in more:
            arguments += fsdp_cli.TINY_MODEL
        result = fsdp_cli.run("fsdp-finetune", arguments, ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def samples(self, name, data, *more, count=100, ranks=0):
        """(source, row, epoch) of the first samples of a job."""
        file = self.folder / "samples.jsonl"
        self.tune(name, data, "--dry-run", "--samples", file, "--num-samples", count, *more, ranks=ranks)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        first = lines[0]["position"]
        self.assertEqual([line["position"] for line in lines], list(range(first, first + len(lines))))
        return [(line["source"], line.get("row", line.get("document")), line["epoch"]) for line in lines]

    def test_shares_hold_at_every_prefix(self):
        samples = self.samples("shares", self.mixture, "--max-steps", 500, count=2000)
        self.assertEqual(len(samples), 2000)
        counts = dict.fromkeys(SHARES, 0)
        seen = set()
        for position, (source, row, epoch) in enumerate(samples, 1):
            counts[source] += 1
            self.assertEqual(epoch, (counts[source] - 1) // ROWS[source])
            self.assertNotIn((source, row, epoch), seen)
            seen.add((source, row, epoch))
            for name, share in SHARES.items():
                self.assertLess(abs(counts[name] - share * position), 0.75 + 1e-9)  # 1 - 1 / (2 * 3 - 2)

    def test_without_weights_each_row_comes_once_an_epoch(self):
        paths = [self.folder / f"{name}.h5" for name in ROWS]
        samples = self.samples("sizes", paths, "--max-epochs", 2, count=1000)
        whole = sum(ROWS.values())
        self.assertEqual(len(samples), 2 * whole)
        every_row = sorted((name, row) for name, rows in ROWS.items() for row in range(rows))
        self.assertEqual(sorted(sample[:2] for sample in samples[:whole]), every_row)
        warm = self.samples("sizes", paths, "--max-epochs", 2, "--mix-temperature", 1e9)
        self.assertEqual({warm[:99].count(s) and s[0] for s in warm[:99]}, set(ROWS))
        self.assertEqual([sum(s[0] == name for s in warm[:99]) for name in ROWS], [33, 33, 33])

    def test_ends(self):
        paths = [self.word(name, 1) for name in ROWS]
        dropped = self.samples("drop", paths, "--mix-end", "drop", count=1000)
        self.assertEqual(sorted(dropped), sorted((name, row, 0) for name, rows in ROWS.items() for row in range(rows)))
        stopped = self.samples("stop", paths, "--mix-end", "stop", "--max-steps", 50, count=1000)
        self.assertEqual([sum(s[0] == name for s in stopped) for name in ROWS], [10, 10, 9])  # before the tenth of c
        result = self.tune("stop", paths, "--mix-end", "stop", "--max-steps", 50, "--batch-size", 5)
        self.assertEqual([step["samples"] for step in self.parts("stop", "c")], [1, 2, 2, 1, 2, 1])  # 29 samples in 6 steps
        self.assertIn("source    c is through with its 9 rows", result.err)

    def parts(self, run, source):
        return [step["sources"][source] for step in fsdp_cli.steps(self.run_directory(run))]

    def test_any_ranks_and_what_is_told_of_each_source(self):
        more = ["--max-steps", 8, "--batch-size", 4, "--total-batch-size", 12, "--seed", 5]
        self.tune("one", self.mixture, *more)
        self.tune("three", self.mixture, *more, ranks=3)
        self.assertLess(fsdp_cli.difference(self.losses("one"), self.losses("three")), 1e-5)  # float32 sums in another order
        for one, three in zip(fsdp_cli.steps(self.run_directory("one")), fsdp_cli.steps(self.run_directory("three"))):
            self.assertEqual(sum(part["tokens"] for part in one["sources"].values()), one["tokens"])
            self.assertEqual(sum(part["samples"] for part in one["sources"].values()), 12)
            mean = sum(part["tokens"] * (part["loss"] or 0) for part in one["sources"].values()) / one["tokens"]
            self.assertAlmostEqual(mean, one["loss"], places=9)
            for name, part in one["sources"].items():
                other = three["sources"][name]
                self.assertEqual({**part, "loss": 0}, {**other, "loss": 0})
                if part["samples"]:
                    self.assertAlmostEqual(part["loss"], other["loss"], places=4)

    def test_strategies_agree_about_each_source(self):
        more = ["--max-steps", 4, "--batch-size", 2, "--gradient-accumulation-steps", 3, "--seed", 5]
        self.tune("full-shard", self.mixture, *more, ranks=2)
        wanted = fsdp_cli.steps(self.run_directory("full-shard"))
        for sharding in ("no-shard", "grad-shard"):
            self.tune(sharding, self.mixture, *more, "--sharding", sharding, ranks=2)
            for step, same in zip(fsdp_cli.steps(self.run_directory(sharding)), wanted):
                for name, part in step["sources"].items():
                    self.assertEqual(part["tokens"], same["sources"][name]["tokens"])
                    if part["tokens"]:
                        self.assertAlmostEqual(part["loss"], same["sources"][name]["loss"], places=4)  # float32 sums in another order

    def test_the_loss_of_a_source_is_that_of_its_rows(self):
        paths = [self.folder / f"{name}.h5" for name in ROWS]
        self.tune("whole", paths, "--max-steps", 1, "--batch-size", sum(ROWS.values()), "--lr", 0)
        for path in paths:
            loss = self.evaluate(self.checkpoints("whole") / "latest", "--data", path)["loss"]
            self.assertAlmostEqual(self.parts("whole", path.stem)[0]["loss"], loss, places=5)

    def test_a_restart_on_other_ranks_reads_the_same_samples(self):
        more = ["--batch-size", 1, "--total-batch-size", 12, "--seed", 5]
        whole = self.samples("listed", self.mixture, *more, "--max-steps", 12, count=144)
        self.tune("straight", self.mixture, *more, "--max-steps", 12, ranks=2)
        self.tune("resumed", self.mixture, *more, "--max-steps", 4, ranks=4)
        for steps, ranks in ((8, 3), (12, 1)):
            rest = self.samples("resumed", self.mixture, "--restart", "latest", "--max-steps", steps, count=48, ranks=ranks)
            self.assertEqual(rest, whole[(steps - 4) * 12:steps * 12])
            self.tune("resumed", self.mixture[::-1], "--restart", "latest", "--max-steps", steps, ranks=ranks)  # another order of words
        self.assertLess(fsdp_cli.difference(self.losses("straight"), self.losses("resumed")), 1e-5)

    def test_other_weights_and_sources_go_on_where_each_source_stood(self):
        unshuffled = ["--no-shuffle", "--batch-size", 10]
        self.tune("changed", [self.word("a", 5), self.word("b", 3), self.word("c", 2)], *unshuffled, "--max-steps", 3)
        result = self.tune("changed", [self.word("a", 1), self.word("b", 1)], "--restart", "latest", "--max-steps", 5)
        self.assertIn("mixture   c rests; the shares are a 50 %, b 50 %, and were a 50 %, b 30 %, c 20 %: each source goes on where it stood", result.err)
        samples = self.samples("changed", [self.word("a", 1), self.word("b", 1), self.word("c", 2)], "--restart", "latest", "--max-steps", 6, count=8)
        # a gave 15 + 10, b 9 + 10, c 6 rows.
        self.assertEqual(sorted(samples), [("a", 25, 0), ("a", 26, 0), ("b", 19, 0), ("b", 20, 0), ("c", 6, 0), ("c", 7, 0), ("c", 8, 0), ("c", 0, 1)][:4] +
                         sorted([("c", 6, 0), ("c", 7, 0), ("c", 8, 0), ("c", 0, 1)]))

    def test_a_source_that_changed_is_refused_by_name_and_one_that_grew_is_taken(self):
        mine = self.folder / "mine"
        mine.mkdir()
        for name in ("a", "b"):
            shutil.copy(self.folder / f"{name}.h5", mine)
        mixture = [f"{mine}/a.h5:1", f"{mine}/b.h5:1"]
        self.tune("source", mixture, "--max-steps", 3, "--batch-size", 4)
        moved = self.folder / "moved"
        mine.rename(moved)
        mixture = [f"{moved}/a.h5:1", f"{moved}/b.h5:1"]
        self.tune("source", mixture, "--restart", "latest", "--max-steps", 4)  # the same files elsewhere
        with h5py.File(self.folder / "b.h5") as file:
            old = file["input_ids"][:]
        fsdp_cli.write_tokens(moved / "b.h5", numpy.concatenate([old, old[:5]]))
        result = self.tune("source", mixture, "--restart", "latest", "--max-steps", 5)
        self.assertIn("b has 5 rows more, with which its present epoch ends", result.err)
        fsdp_cli.write_tokens(moved / "b.h5", old[::-1])
        self.assert_refused(self.tune("source", mixture, "--restart", "latest", "--max-steps", 6, code=2), 2, "the source b", "no longer there")
        fsdp_cli.write_tokens(moved / "b.h5", numpy.concatenate([old[::-1], old[:5]]))
        self.assert_refused(self.tune("source", mixture, "--restart", "latest", "--max-steps", 6, code=2), 2, "the source b", "holds other rows")
        renamed = [f"{moved}/a.h5:1", f"new={moved}/b.h5:1"]
        result = self.tune("source", renamed, "--restart", "latest", "--max-steps", 6)
        self.assertIn("new is new and begins at its first row; b rests", result.err)

    def test_a_damaged_checkpoint_takes_the_sources_back_too(self):
        unshuffled = ["--no-shuffle", "--batch-size", 2]
        self.tune("back", [self.word("b", 1)], *unshuffled, "--max-steps", 2)
        self.tune("back", [self.word("b", 1), self.word("a", 1)], "--restart", "latest", "--max-steps", 4)
        shard = next((self.checkpoints("back") / "step-00000004").glob("__0_0.distcp"))
        shard.write_bytes(bytes(shard.stat().st_size))
        result = self.tune("back", [self.word("b", 1), self.word("a", 3)], "--restart", "latest", "--max-steps", 6)
        self.assertIn("a is new and begins at its first row", result.err)
        last = fsdp_cli.steps(self.run_directory("back"))[-1]["sources"]
        self.assertEqual({name: round(part["epochs"] * ROWS[name]) for name, part in last.items()}, {"a": 6, "b": 6})  # 4 and 2 of 8 more

    def test_a_damaged_checkpoint_of_another_file_goes_back_to_its_place(self):
        self.tune("other", [self.folder / "a.h5"], "--batch-size", 2, "--max-steps", 2)
        self.tune("other", [self.folder / "b.h5"], "--restart", "latest", "--max-steps", 4)
        shard = next((self.checkpoints("other") / "step-00000004").glob("__0_0.distcp"))
        shard.write_bytes(bytes(shard.stat().st_size))
        self.tune("other", [self.folder / "b.h5"], "--restart", "latest", "--max-steps", 5)
        run = json.loads((self.checkpoints("other") / "step-00000005" / "run.json").read_text())
        self.assertEqual(json.loads(run["data"]["mixture"])["sources"][0]["samples"], 10)

    def test_another_seed_of_packed_rows_is_a_warning(self):
        texts = self.folder / "packed.jsonl"
        texts.write_text("".join(json.dumps({"text": "word " * (i % 7 + 1)}) + "\n" for i in range(60)))
        model = ["--num-layers", 1, "--num-heads", 2, "--embed-size", 16, "--seq-len", 16, "--tokenizer", "gpt2"]
        arguments = ["--train-data", texts, "--pack", "--out-dir", self.runs, "--run-name", "seed", *fsdp_cli.COMMON]
        for more in (["--max-steps", 2, *model], ["--max-steps", 3, "--restart", "latest", "--seed", 7]):
            result = fsdp_cli.run("fsdp-finetune", [*arguments, *more])
            self.assertEqual(result.code, 0, str(result))
        self.assertIn("--seed 7 gives another order of the data", result.err)

    def test_one_source_of_a_file_keeps_its_options(self):
        (self.folder / "one.jsonl").write_text("".join(json.dumps({"body": f"Text {i}."}) + "\n" for i in range(9)))
        mix = self.folder / "one.json"
        mix.write_text(json.dumps({"sources": [{"path": "one.jsonl", "name": "mine", "field": "body", "max_rows": 5, "validation": "one.jsonl"}]}))
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", mix, "--tokenizer", "gpt2", "--seq-len", 16, "--dry-run", *fsdp_cli.COMMON])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("data      5 texts", result.err)
        self.assertIn("validation mine 9 rows", result.err)
        more = ["--tokenizer", "gpt2", "--seq-len", 16, "--dry-run", *fsdp_cli.COMMON]
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", mix, "--val-data", self.folder / "one.jsonl", *more])
        self.assert_refused(result, 2, "NAME=PATH")
        plain = self.folder / "plain.jsonl"
        plain.write_text('{"text": "Under another key."}\n')
        mix.write_text(json.dumps({"sources": [{"path": "one.jsonl", "field": "body"}]}))
        result = fsdp_cli.run("fsdp-finetune", ["--train-data", mix, "--val-data", plain, *more])
        self.assertEqual(result.code, 0, str(result))

    def test_texts_conversations_and_packed_documents_in_one_file(self):
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps({"body": f"Text {i} of a set."}) + "\n" for i in range(12)))
        talks = self.folder / "talks.jsonl"
        talks.write_text("".join(json.dumps({"prompt": f"How many? {i}", "completion": f" {i}."}) + "\n" for i in range(8)))
        mix = self.folder / "mix.json"
        mix.write_text(json.dumps({"sources": [{"path": "texts.jsonl", "epochs": 1, "field": "body", "validation": "texts.jsonl"},
                                               {"path": "talks.jsonl", "epochs": 2, "name": "talk", "form": "prompt-completion"},
                                               {"path": "a.h5", "epochs": 0.5}]}))
        model = ["--num-layers", 1, "--num-heads", 2, "--embed-size", 16, "--seq-len", 32]
        for pack in ([], ["--pack"]):
            result = fsdp_cli.run("fsdp-finetune", ["--train-data", mix, "--out-dir", self.runs, "--run-name", "mixed", *fsdp_cli.COMMON, *model, *pack,
                                                    "--json", "--tokenizer", "gpt2", "--batch-size", 5])
            self.assertEqual(result.code, 0, str(result))
            self.assertIn("source    talk", result.err)
            last = fsdp_cli.steps(self.run_directory("mixed"))[-1]["sources"]
            self.assertAlmostEqual(last["talk"]["epochs"], 2, delta=0.01)
            self.assertAlmostEqual(last["a"]["epochs"], 0.5, delta=0.01)
            self.assertIn("texts", result.json()["val_loss_by_set"] if "val_loss_by_set" in result.json() else str(result.json()))
        mix.write_text(json.dumps({"sources": [{"path": "texts.jsonl", "field": "body"}, {"path": "talks.jsonl"}]}))
        split = fsdp_cli.run("fsdp-finetune", ["--train-data", mix, "--out-dir", self.runs, "--run-name", "split", *fsdp_cli.COMMON, *model,
                                               "--tokenizer", "gpt2", "--val-split", 0.3, "--max-steps", 1])
        self.assertEqual(split.code, 0, str(split))
        self.assertIn("split     texts: to train on", split.err)
        self.assertIn("split     talks: to train on", split.err)
        sets = {record["val_set"] for record in fsdp_cli.records(self.run_directory("split")) if "val_set" in record}
        self.assertEqual(sets, {"texts", "talks"})

    def test_fifty_sources_and_a_terabyte_are_planned_without_reading_them(self):
        many = self.folder / "many"
        many.mkdir()
        words = []
        for number in range(50):
            fsdp_cli.write_tokens(many / f"s{number}.h5", fsdp_cli.random_tokens(rows=20, seed=number))
            words.append(f"{many / f's{number}.h5'}:{number + 1}")
        samples = self.samples("fifty", words, "--max-steps", 1000, count=3000)
        for number in range(50):
            self.assertLess(abs(sum(s[0] == f"s{number}" for s in samples) - 3000 * (number + 1) / 1275), 1)
        large = self.folder / "large.bin"
        with open(large, "wb") as file:
            file.truncate(10 ** 12)  # without blocks on the disk
        result = self.tune("large", [f"{large}:1", self.word("a", 1)], "--token-dtype", "uint16", "--dry-run", "--max-steps", 10)
        self.assertIn("source    large   50 %   15,624,999,999 rows x 32 tokens", result.err)
        self.assertIn("are not checked: the run will", result.err)

    def test_words_lists_and_what_is_refused(self):
        config = self.folder / "job.conf"
        config.write_text("train-data = [{}]\nmax-steps = 2\n".format(", ".join(f'"{word}"' for word in self.mixture)))
        result = fsdp_cli.run("fsdp-finetune", ["--config", config, "--out-dir", self.runs, "--run-name", "listed", *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(len(self.parts("listed", "c")), 2)
        last = self.samples("last", [self.folder / "a.h5", "--train-data", self.folder / "c.h5"], count=3)  # the last one counts
        self.assertEqual({sample[0] for sample in last}, {"c"})
        self.assert_refused(self.tune("x", [self.word("a", 1), self.word("nosuch", 1)], code=4), 4, "source nosuch", "nosuch.h5")
        self.assert_refused(self.tune("x", [self.word("a", 1), self.folder / "b.h5"], code=2), 2, "b.h5 has no weight")
        self.assert_refused(self.tune("x", [self.word("a", 0), self.word("b", 0)], code=2), 2, "weights of a mixture sum to 0")
        self.assert_refused(self.tune("x", [self.word("a", -1), self.word("b", 1)], code=2), 2, "weight of", "not negative")
        self.assert_refused(self.tune("x", [self.word("a", 1), self.word("a", 1)], code=2), 2, "two sources are called")
        self.assert_refused(self.tune("x", self.mixture, "--mix-temperature", 2, code=2), 2, "temperature")
        self.assert_refused(self.tune("x", self.mixture, "--samples", self.folder / "s.jsonl", code=2), 2, "--dry-run")


if __name__ == "__main__":
    fsdp_cli.main()
