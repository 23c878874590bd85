"""fsdp-finetune --objective dpo, orpo, simpo and cpo against TRL 1.16 (tests/fixtures/recipes/dpo) and formulas in float64."""

import json
import math
import os
import pathlib
import shutil
import struct

import fsdp_cli
import trl_cli

DPO = pathlib.Path(os.environ["FSDP_FIXTURES"]) / "recipes" / "dpo"
EXPECTED = json.loads((DPO / "expected.json").read_text())
# Tolerances for two float32 implementations: the fixtures' table "what to ask".
LOSS, NORM, LOGPS = 2e-5, 2e-5, 1e-4
TRAINED = ["--lr", "2e-3", "--lr-schedule", "constant", "--warmup-ratio", 0, "--warmup-steps", 0, "--betas", 0.9, 0.999,
           "--eps", "1e-8", "--weight-decay", 0, "--clip-grad-norm", 1, "--no-shuffle", "--total-batch-size", 4, "--log-every", 1]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Preferences(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        samples = json.loads((DPO / "preferences.json").read_text())
        cls.data = {}
        for name, rows in samples.items():
            cls.data[name] = cls.folder / f"{name}.jsonl"
            cls.data[name].write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tune(self, name, *more, data="plain", ranks=0, code=0, steps=10, objective=("--objective", "dpo")):
        result = fsdp_cli.run("fsdp-finetune", ["--model", DPO / "base", "--tokenizer", DPO / "tokenizer", "--train-data", self.data[data],
                                                "--out-dir", self.runs, "--run-name", name, "--device", "cpu", "--batch-size", 4, *TRAINED,
                                                "--max-steps", steps, *objective, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def steps(self, name):
        return [record for record in fsdp_cli.records(self.run_directory(name)) if "grad_norm" in record]

    def check(self, name, expected, loss=LOSS):
        """Losses, norms and means of a run are those of the fixture."""
        for got, want in zip(self.steps(name), expected):
            self.assertLess(abs(got["loss"] - want["loss"]) / max(1, abs(want["loss"])), loss)
            self.assertLess(abs(got["grad_norm"] / want["grad_norm"] - 1), NORM)
            means = got["means"]
            for key, pairs in (("reward_chosen", "rewards_chosen"), ("reward_rejected", "rewards_rejected"),
                               ("logps_chosen", "logps_chosen"), ("logps_rejected", "logps_rejected")):
                self.assertLess(abs(means[key] - sum(want[pairs]) / 4), LOGPS)
            right = sum(chosen > rejected for chosen, rejected in zip(want["rewards_chosen"], want["rewards_rejected"]))
            self.assertEqual(means["reward_accuracy"], right / 4)

    def test_ten_steps_are_trls(self):
        self.tune("full")
        self.assertEqual(len(self.steps("full")), 10)
        self.check("full", EXPECTED["full"]["steps"])
        self.assertAlmostEqual(self.steps("full")[0]["loss"], math.log(2), delta=1e-12)  # the reference is the same forward

    def test_ten_steps_of_an_adapter_are_trls(self):
        start = self.folder / "start"
        shutil.copytree(DPO / "lora", start, dirs_exist_ok=True)
        trl_cli.write_initial_adapter(start / "adapter_model.safetensors", EXPECTED["lora"]["trained"], EXPECTED["seed"])
        self.tune("lora", "--adapter", start)
        self.check("lora", EXPECTED["lora"]["steps"])

    def test_losses_against_another_reference_are_trls(self):
        kinds = EXPECTED["losses_against_another_reference"]["kinds"]
        for kind, truth in kinds.items():
            name = kind.split("+", maxsplit=1)[0]
            more = ["--dpo-loss", name, "--reference", DPO / "reference"]
            more += ["--label-smoothing", 0.1] if name == "robust" else ["--sft-weight", 1] if kind.endswith("+sft") else []
            with self.subTest(kind):
                self.tune(kind.replace("+", "-"), *more, steps=3)
                self.check(kind.replace("+", "-"), truth["by_formula"])

    def test_the_other_losses_are_their_formulas(self):
        """In float64, from the log-probabilities of the fixture: where TRL's fixture has none."""
        first = EXPECTED["losses_against_another_reference"]["kinds"]["sigmoid"]["by_formula"][0]
        lengths = {side: [len(row[f"{side}_ids"]) for row in json.loads((DPO / "tokenised.json").read_text())["plain"]]
                   for side in ("chosen", "rejected")}
        pairs = list(zip(first["rewards_chosen"], first["rewards_rejected"]))
        means = [(c / n, r / m) for c, r, n, m in zip(first["logps_chosen"], first["logps_rejected"], lengths["chosen"], lengths["rejected"])]
        chosen_nll = -sum(first["logps_chosen"]) / sum(lengths["chosen"])

        def odds(mean):
            return mean - math.log1p(-math.exp(mean))

        def mean(values):
            values = list(values)
            return sum(values) / len(values)

        eps = 0.1
        reference = ["--reference", DPO / "reference"]
        wanted = {
            "exo_pair": (["--dpo-loss", "exo_pair", "--label-smoothing", eps, *reference], mean(
                sigmoid(c - r) * (log_sigmoid(c - r) - math.log(1 - eps)) + sigmoid(r - c) * (log_sigmoid(r - c) - math.log(eps)) for c, r in pairs)),
            "nca_pair": (["--dpo-loss", "nca_pair", *reference],
                         mean(-log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r) for c, r in pairs)),
            "apo_down": (["--dpo-loss", "apo_down", *reference], mean(sigmoid(c) + 1 - sigmoid(c - r) for c, r in pairs)),
            "sppo_hard": (["--dpo-loss", "sppo_hard", *reference], mean((10 * c - 5) ** 2 + (10 * r + 5) ** 2 for c, r in pairs)),
            "discopop": (["--dpo-loss", "discopop", *reference], mean(
                -log_sigmoid(c - r) * sigmoid(20 * (r - c)) + math.exp(r - c) * sigmoid(20 * (c - r)) for c, r in pairs)),
            "bco_pair": (["--dpo-loss", "bco_pair", *reference], mean(-log_sigmoid(c) - log_sigmoid(-r) for c, r in pairs)),
            "sum": (["--dpo-loss", "sigmoid:0.75,hinge:0.5", *reference],
                    mean(-0.75 * log_sigmoid(c - r) + 0.5 * max(0, 1 - c + r) for c, r in pairs)),
            "orpo": (["--objective", "orpo"], chosen_nll - 0.1 * mean(log_sigmoid(odds(c) - odds(r)) for c, r in means)),
            "simpo": (["--objective", "simpo", "--dpo-beta", 2], mean(-log_sigmoid(2 * (c - r) - 0.5) for c, r in means)),
            "cpo": (["--objective", "cpo"], chosen_nll + mean(-log_sigmoid(0.1 * (c - r)) for c, r in zip(first["logps_chosen"], first["logps_rejected"]))),
        }
        for name, (options, loss) in wanted.items():
            with self.subTest(name):
                self.tune(name, *options, steps=1)
                self.assertLess(abs(self.steps(name)[0]["loss"] - loss) / max(1, abs(loss)), LOSS)

    def test_any_ranks_strategies_and_layouts_train_alike(self):
        self.tune("one", steps=4)
        want = [step["loss"] for step in self.steps("one")]
        # The later --batch-size counts; micro-batches of one pair are accumulated.
        variants = {"two": (["--batch-size", 2], 2), "four": (["--batch-size", 1], 4), "accumulated": (["--batch-size", 1], 1),
                    "no-shard": (["--batch-size", 2, "--sharding", "no-shard"], 2),
                    "grad-shard": (["--batch-size", 2, "--sharding", "grad-shard"], 2),
                    "hybrid": (["--batch-size", 1, "--sharding", "hybrid-full-shard", "--shard-group-size", 2], 4),
                    "hybrid-grad-shard": (["--batch-size", 1, "--sharding", "hybrid-grad-shard", "--shard-group-size", 2], 4),
                    "recomputed": (["--activation-checkpointing", "all"], 1)}
        for name, (more, ranks) in variants.items():
            with self.subTest(name):
                self.tune(name, *more, ranks=ranks, steps=4)
                for got, loss in zip(self.steps(name), want):
                    self.assertLess(abs(got["loss"] - loss), LOSS)
        # Three of the four preferences in each step; the next one begins with the fourth.
        self.tune("one-of-three", "--total-batch-size", 3, "--batch-size", 3, steps=4)
        self.tune("three", "--total-batch-size", 3, "--batch-size", 1, ranks=3, steps=4)
        for got, want in zip(self.steps("three"), self.steps("one-of-three")):
            self.assertLess(abs(got["loss"] - want["loss"]), LOSS)
            self.assertLess(abs(got["grad_norm"] / want["grad_norm"] - 1), NORM)

    def test_the_loss_is_its_formula(self):
        """A step's loss is that of its own rewards: to 1e-6, since float64 numbers go through one formula."""
        one = self.write_one()
        self.data["one"] = one
        for name, loss in (("sigmoid", lambda c, r: -log_sigmoid(c - r)), ("hinge", lambda c, r: max(0, 1 - c + r)),
                           ("nca_pair", lambda c, r: -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r)),
                           ("apo_zero", lambda c, r: 1 - sigmoid(c) + sigmoid(r)), ("bco_pair", lambda c, r: -log_sigmoid(c) - log_sigmoid(-r))):
            with self.subTest(name):
                self.tune(f"formula-{name}", "--dpo-loss", name, "--reference", DPO / "reference", "--total-batch-size", 1, "--batch-size", 1, data="one", steps=3)
                for step in self.steps(f"formula-{name}"):
                    means = step["means"]
                    self.assertLess(abs(step["loss"] - loss(means["reward_chosen"], means["reward_rejected"])), 1e-6)

    def write_one(self):
        file = self.folder / "one.jsonl"
        file.write_text(self.data["plain"].read_text().splitlines()[0] + "\n")
        return file

    def test_from_a_fine_tune_to_a_chat(self):
        """Supervised fine-tuning, preferences on its export, an export of both as one model, an answer in a chat."""
        talks = [json.loads(line) for line in self.data["conversations"].read_text().splitlines()]
        self.data["talks"] = self.folder / "talks.jsonl"
        self.data["talks"].write_text("".join(json.dumps({"messages": talk["prompt"] + talk["chosen"]}) + "\n" for talk in talks))
        tuned, preferred = self.folder / "hf-tuned", self.folder / "hf-preferred"
        self.tune("chain-sft", "--save-final-hf", tuned, data="talks", objective=(), steps=20)
        self.tune("chain-dpo", "--model", tuned, "--lora-rank", 4, "--save-final-hf", preferred, data="conversations", steps=8)
        steps = self.steps("chain-dpo")
        self.assertEqual(steps[0]["means"]["reward_chosen"], 0)  # the reference is the fine-tune
        self.assertGreater(steps[-1]["means"]["reward_margin"], 0)
        question = talks[0]["prompt"][0]["content"]
        said = fsdp_cli.run("fsdp-eval", [preferred, "--chat", "--prompt", question, "--num-tokens", 8, "--temperature", 0, "--device", "cpu", "--json"])
        self.assertEqual(said.code, 0, str(said))
        self.assertTrue(said.json()["text"])
        margins = [fsdp_cli.run("fsdp-eval", [model, "--data", self.data["conversations"], "--device", "cpu", "--json"]).json()["reward_margin"] for model in (tuned, preferred)]
        self.assertGreater(margins[1], margins[0])

    def test_packed_rows_have_the_same_pairs(self):
        self.tune("padded", steps=2, objective=("--objective", "dpo", "--total-batch-size", 4))
        packed = self.tune("packed", "--pack", "--seq-len", 60, "--total-batch-size", 1, "--batch-size", 1, steps=2)
        self.assertRegex(packed.err, r"shared    \d+ tokens of prompts are computed once for both sides")
        for got, want in zip(self.steps("packed"), self.steps("padded")):
            self.assertLess(abs(got["loss"] - want["loss"]), LOSS)
            self.assertLess(abs(got["grad_norm"] / want["grad_norm"] - 1), NORM)
            for name in ("logps_chosen", "logps_rejected", "entropy"):
                self.assertLess(abs(got["means"][name] - want["means"][name]), LOGPS)

    def test_entropy_is_that_of_all_targets(self):
        try:
            import torch
            import transformers
        except ImportError as missing:
            self.skipTest(str(missing))
        model = transformers.AutoModelForCausalLM.from_pretrained(DPO / "base", dtype=torch.float64)
        entropies = []
        for pair in json.loads((DPO / "tokenised.json").read_text())["plain"]:
            for side in ("chosen_ids", "rejected_ids"):
                prompt, answer = pair["prompt_ids"], pair[side]
                with torch.no_grad():
                    log_probs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)[len(prompt) - 1:-1]
                entropies.extend((-(log_probs.exp() * log_probs).sum(-1)).tolist())
        self.tune("entropy", steps=1)
        first = self.steps("entropy")[0]
        self.assertLess(abs(first["means"]["entropy"] - sum(entropies) / len(entropies)), 1e-5)  # float32 on one side

    def test_a_restart_reads_the_same_reference(self):
        self.tune("whole", steps=6)
        self.tune("parts", steps=3)
        result = self.tune("parts", "--restart-checkpoint-file", "latest", steps=6)
        self.assertIn(".reference.npy", result.err)
        self.assertEqual([s["loss"] for s in self.steps("parts")], [s["loss"] for s in self.steps("whole")])

    def test_a_restart_keeps_the_options(self):
        more = ["--dpo-loss", "hinge", "--dpo-beta", 0.3, "--reference", DPO / "reference"]
        self.tune("whole-hinge", *more, steps=4)
        self.tune("hinge-parts", *more, steps=2)
        resumed = ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", "hinge-parts", "--max-steps", 4, "--device", "cpu"]
        result = fsdp_cli.run("fsdp-finetune", resumed)
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual([s["loss"] for s in self.steps("hinge-parts")], [s["loss"] for s in self.steps("whole-hinge")])

    def test_after_a_fine_tune_its_weights_are_the_reference(self):
        data = self.folder / "answers.jsonl"
        samples = [json.loads(line) for line in self.data["plain"].read_text().splitlines()]
        data.write_text("".join(json.dumps({"prompt": s["prompt"], "completion": s["chosen"]}) + "\n" for s in samples))
        self.data["answers"] = data
        for adapter in ([], ["--lora-rank", 4]):
            name = f"tuned{len(adapter)}"
            self.tune(name, *adapter, data="answers", objective=(), steps=3)
            self.tune(f"{name}-prefers", "--restart-checkpoint-file", self.run_directory(name) / "checkpoints" / "latest", steps=5)
            first = self.steps(f"{name}-prefers")[0]
            if adapter:  # the reference is the base
                self.assertNotEqual(first["means"]["reward_margin"], 0)
            else:
                self.assertEqual(first["means"]["reward_chosen"], 0)

    def test_the_reference_is_of_these_data_and_numbers(self):
        """A file of the cache is taken for the same ids, targets, length, weights and types only."""
        name = "many"
        rows = [{"prompt": f"boat {i % 7} wind", "chosen": " red" + " noon" * (i % 5), "rejected": " wind" + " three" * (i % 3)} for i in range(120)]
        self.data[name] = self.folder / "many.jsonl"

        def write():
            self.data[name].write_text("".join(json.dumps(row) + "\n" for row in rows))

        def first_margin(run, *more):
            self.tune(run, *more, data=name, steps=1)
            return self.steps(run)[0]["means"]["reward_margin"]

        write()
        self.assertEqual(first_margin("many-1"), 0)
        rows[1]["chosen"], rows[1]["rejected"] = rows[1]["rejected"], rows[1]["chosen"]
        write()
        self.assertEqual(first_margin("many-2"), 0)
        rows[2] = {"prompt": "boat", "chosen": " 2 wind red noon noon", "rejected": " 2 wind wind three three"}  # the ids of before
        write()
        self.assertEqual(first_margin("many-3"), 0)
        self.assertEqual(first_margin("many-4", "--precision", "bf16"), 0)
        kept = len(list((self.runs / "token-cache").glob("many-*.reference.npy")))
        self.assertEqual(kept, 4)
        first_margin("many-5", "--lr", "1e-3", "--dpo-beta", 0.2)  # another run with these data and weights reads them
        self.assertEqual(len(list((self.runs / "token-cache").glob("many-*.reference.npy"))), kept)
        damaged = next((self.runs / "token-cache").glob("many-*.reference.npy"))
        for file in (self.runs / "token-cache").glob("many-*.reference.npy"):
            file.write_bytes(file.read_bytes()[:-9])
        self.assertEqual(first_margin("many-6"), 0)
        self.assertTrue(damaged.exists())

    def test_sides_without_targets_are_left_out(self):
        rows = [{"prompt": "boat wind " * 12, "chosen": " red", "rejected": " noon"}, {"prompt": "boat", "chosen": " noon", "rejected": " wind"}]
        self.data["long"] = self.folder / "long.jsonl"
        self.data["long"].write_text("".join(json.dumps(row) + "\n" for row in rows))
        tokens = self.folder / "long.h5"
        result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.data["long"], "--tokenizer", DPO / "tokenizer", "--output", tokens])
        self.assertEqual(result.code, 0, str(result))
        self.data["long-tokens"] = tokens
        small = ("--seq-len", 16, "--batch-size", 1, "--total-batch-size", 1)
        for objective in ("dpo", "orpo"):
            self.tune(f"texts-{objective}", *small, data="long", objective=("--objective", objective), steps=2)
            result = self.tune(f"tokens-{objective}", *small, data="long-tokens", objective=("--objective", objective), steps=2)
            self.assertIn("1 of 2 preferences", result.err)
            self.assertEqual([s["loss"] for s in self.steps(f"tokens-{objective}")], [s["loss"] for s in self.steps(f"texts-{objective}")])
        packed = self.tune("tokens-packed", *small, "--pack", data="long-tokens", steps=1)
        self.assertIn("1 of 2 preferences", packed.err)
        report = fsdp_cli.run("fsdp-eval", [DPO / "base", "--data", tokens, "--seq-len", 16, "--tokenizer", DPO / "tokenizer", "--device", "cpu", "--json"])
        self.assertEqual(report.code, 0, str(report))
        self.assertEqual((report.json()["preferences"], report.json()["preferences_left_out"]), (1, 1))
        ends = self.tune("ends", *small, "--truncation", "keep-end", data="long", steps=2)
        self.assertNotIn("left out", ends.err)
        self.assertIn("cut", ends.err)
        self.assertIn("token file", self.tune("x", "--truncation", "keep-end", data="long-tokens", code=2).err)

    def test_encoded_as_trl_does(self):
        """Ids and masks of token files are those of TRL; a token file trains as its texts do."""
        import h5py
        truth = json.loads((DPO / "tokenised.json").read_text())
        for name in ("plain", "conversations"):
            output = self.folder / f"{name}.h5"
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.data[name], "--tokenizer", DPO / "tokenizer", "--output", output])
            self.assertEqual(result.code, 0, str(result))
            with h5py.File(output) as file:
                tokens, offsets, mask = file["tokens"][:], file["offsets"][:], file["loss_mask"][:]
                self.assertEqual(file.attrs["preferences"], 1)
            documents = [(tokens[a:b].tolist(), mask[a:b].tolist()) for a, b in zip(offsets, offsets[1:])]
            self.assertEqual(len(documents), 2 * len(truth[name]))
            for i, row in enumerate(truth[name]):
                for side, (ids, counts) in zip(("chosen", "rejected"), documents[2 * i:2 * i + 2]):
                    self.assertEqual(ids, row["prompt_ids"] + row[f"{side}_ids"])
                    self.assertEqual(counts, [0] * len(row["prompt_ids"]) + [1] * len(row[f"{side}_ids"]))
        self.tune("of-texts", steps=2)
        self.data["tokens"] = self.folder / "plain.h5"
        self.tune("of-tokens", data="tokens", steps=2)
        self.assertEqual([s["loss"] for s in self.steps("of-tokens")], [s["loss"] for s in self.steps("of-texts")])

    def test_validation_tells_the_same_figures(self):
        result = self.tune("validated", "--val-data", self.data["plain"], "--eval-every", 2, "--keep-best", "reward_accuracy", steps=4)
        self.assertIn("reward_accuracy", result.err)
        records = [r for r in fsdp_cli.records(self.run_directory("validated")) if "val_loss" in r]
        self.assertEqual(len(records), 2)
        after_two = self.steps("validated")[2]  # before the third step
        self.assertLess(abs(records[0]["val_loss"] - after_two["loss"]), LOSS)
        for name, value in after_two["means"].items():
            self.assertLess(abs(records[0]["val_means"][name] - value), LOGPS)
        self.assertTrue((self.run_directory("validated") / "checkpoints" / "best").exists())

    def test_what_is_told_and_refused(self):
        rows = [{"prompt": "boat", "chosen": " red", "rejected": " red"}, {"prompt": "boat", "chosen": " noon", "rejected": " wind"}]
        self.data["equal"] = self.folder / "equal.jsonl"
        self.data["equal"].write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.assertIn("1 preference has two equal sides", self.tune("equal", "--total-batch-size", 2, "--batch-size", 2, data="equal", steps=1).err)
        self.data["texts"] = self.folder / "texts.jsonl"
        self.data["texts"].write_text(json.dumps({"text": "boat red"}) + "\n")
        self.assertIn("is a text, and a preference was asked for", self.tune("x", data="texts", code=4).err)
        self.assertIn("--objective dpo", self.tune("x", objective=(), code=2).err)
        for options, word in ((["--dpo-loss", "nosuch"], "nosuch"), (["--label-smoothing", 0.1], "--label-smoothing"),
                              (["--simpo-gamma", 1], "--simpo-gamma"), (["--train-on", "all"], "--train-on"),
                              (["--data-form", "messages"], "--data-form"), (["--stream"], "--stream")):
            self.assertIn(word, self.tune("x", *options, code=2).err)
        self.assertIn("belongs to --objective", self.tune("x", "--dpo-beta", 0.2, objective=(), code=2).err)
        bad = {"mixed": ({"chosen": "a", "rejected": ["b"]}, "both are to be of one kind"), "number": ({"prompt": "a", "chosen": 5, "rejected": "b"}, "'chosen' holds"),
               "apart": ({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]}, "begin with no message")}
        for name, (row, words) in bad.items():
            self.data[name] = self.folder / f"{name}.jsonl"
            self.data[name].write_text(json.dumps(row) + "\n")
            self.assertIn(words, self.tune("x", data=name, code=4).err)
        (self.folder / "ref.npy").write_bytes(b"\x93NUMPY")
        self.assertIn("is no NumPy array of float64", self.tune("x", "--reference", self.folder / "ref.npy", code=4).err)
        self.assertIn("vocabulary is of 300", self.tune("x", "--reference", self.with_vocabulary(300), code=2).err)
        self.assertIn("--val-data", self.tune("x", "--reference", self.folder / "ref.npy", "--val-data", self.data["plain"], code=2).err)

    def with_vocabulary(self, size):
        """The base with fewer rows of embedding and head."""
        import numpy
        import safetensors.numpy
        small = self.folder / f"vocabulary-{size}"
        small.mkdir(exist_ok=True)
        tensors = safetensors.numpy.load_file(DPO / "base" / "model.safetensors")
        cut = {name: numpy.ascontiguousarray(value[:size]) if "embed" in name or "lm_head" in name else value for name, value in tensors.items()}
        safetensors.numpy.save_file(cut, small / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((DPO / "base" / "config.json").read_text())
        (small / "config.json").write_text(json.dumps(dict(config, vocab_size=size)))
        return small

    def test_evaluated(self):
        """fsdp-eval has the figures of the fixture; its file of log-probabilities is a reference."""
        first = EXPECTED["losses_against_another_reference"]["kinds"]["sigmoid"]["by_formula"][0]
        numbers = self.folder / "reference.npy"

        def evaluate(model, *more):
            result = fsdp_cli.run("fsdp-eval", [model, "--data", self.data["plain"], "--data-form", "preference", "--tokenizer", DPO / "tokenizer",
                                                "--device", "cpu", "--json", *more])
            self.assertEqual(result.code, 0, str(result))
            return result.json()

        evaluate(DPO / "reference", "--log-probs", numbers)
        with open(numbers, "rb") as file:
            kept = struct.unpack("<8d", file.read()[-64:])
        truth = EXPECTED["reference_logps"]["reference"]  # the chosen ones, then the rejected
        for i in range(4):
            self.assertLess(abs(kept[2 * i] - truth[i]), LOGPS)
            self.assertLess(abs(kept[2 * i + 1] - truth[4 + i]), LOGPS)
        report = evaluate(DPO / "base", "--reference", numbers)
        pairs = list(zip(first["rewards_chosen"], first["rewards_rejected"]))
        self.assertEqual(report["preferences"], 4)
        self.assertEqual(report["reward_accuracy"], sum(c > r for c, r in pairs) / 4)
        self.assertLess(abs(report["reward_margin"] - sum(c - r for c, r in pairs) / 4), LOGPS)
        self.assertLess(abs(report["logps_chosen"] - sum(first["logps_chosen"]) / 4), LOGPS)
        self.tune("by-file", "--reference", numbers, steps=3)
        self.check("by-file", EXPECTED["losses_against_another_reference"]["kinds"]["sigmoid"]["by_formula"])
        compared = fsdp_cli.run("fsdp-eval", ["--compare", DPO / "base", DPO / "reference", "--data", self.data["plain"], "--tokenizer",
                                              DPO / "tokenizer", "--device", "cpu", "--gate", "reward_margin:100"])
        self.assertEqual(compared.code, 0, str(compared))
        self.assertIn("reward_accuracy", compared.out)

    def test_memory_is_predicted(self):
        """To 0.5 % where most tokens have targets; the head's copies of fewer ones may take less than was predicted."""
        self.data["answers"] = self.folder / "answers-alone.jsonl"
        with open(self.data["answers"], "w", encoding="utf-8") as file:
            for _ in range(4):
                file.write(json.dumps({"prompt": "a", "chosen": " river" * 12, "rejected": " wind" * 12}) + "\n")
        for data, most in (("answers", 0.5), ("plain", 2)):
            for more in ([], ["--pack", "--seq-len", 60, "--total-batch-size", 1, "--batch-size", 1], ["--lora-rank", 4]):
                with self.subTest(data=data, more=more):
                    result = self.tune(f"memory-{data}-{len(more)}", *more, steps=2, data=data)
                    line = next(line for line in result.err.splitlines() if line.startswith("memory    peak"))
                    beyond = float(line.rsplit("prediction", 1)[1].strip(" %"))
                    self.assertGreater(beyond, -0.5, line)
                    self.assertLess(beyond, most, line)

    def test_implicit_prompts(self):
        """As TRL takes them out of both answers."""
        rows = [{"prompt": "Which ferry noon?", "chosen": " river wind", "rejected": " noon wind"}]
        whole = [{"chosen": "Which ferry noon? river wind", "rejected": "Which ferry noon? noon wind"}]
        outputs = []
        for name, samples in (("explicit", rows), ("implicit", whole)):
            path = self.folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in samples))
            outputs.append(self.folder / f"{name}.h5")
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", path, "--tokenizer", DPO / "tokenizer", "--output", outputs[-1]])
            self.assertEqual(result.code, 0, str(result))
        import h5py
        with h5py.File(outputs[0]) as a, h5py.File(outputs[1]) as b:
            for name in ("tokens", "offsets", "loss_mask"):
                self.assertEqual(a[name][:].tolist(), b[name][:].tolist())


if __name__ == "__main__":
    fsdp_cli.main()
