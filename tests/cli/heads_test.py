"""fsdp-finetune --head reward and classify against TRL 1.16 and transformers 5.23 (tests/fixtures/recipes/heads)."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import fsdp_cli
import h5py
import numpy
import safetensors.numpy
import trl_cli

RECIPES = pathlib.Path(os.environ["FSDP_FIXTURES"]) / "recipes"
HEADS, DPO = RECIPES / "heads", RECIPES / "dpo"
EXPECTED = json.loads((HEADS / "expected.json").read_text())
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Two float32 implementations: losses, norms and scores (which are about 3) differ by some units in the last place for each step.
LOSS, NORM, SCORE = 1e-6, 1e-5, 1e-5
TRAINED = ["--lr", "2e-3", "--lr-schedule", "constant", "--warmup-ratio", 0, "--warmup-steps", 0, "--betas", 0.9, 0.999,
           "--eps", "1e-8", "--weight-decay", 0, "--clip-grad-norm", 1, "--no-shuffle", "--log-every", 1]

# Opens exports in a version of transformers in a folder of its own, and prints what it computes for lists of ids.
OPEN_EXPORT = """
import json, sys
if sys.argv[1]: sys.path.insert(0, sys.argv[1])
import torch, transformers
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[2], attn_implementation="eager").float().eval()
ids = json.loads(sys.argv[3])
with torch.no_grad():
    logits = [model(torch.tensor([one])).logits[0].tolist() for one in ids]
    longest = max(map(len, ids))
    padded = torch.tensor([one + [model.config.pad_token_id] * (longest - len(one)) for one in ids])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
    together = model(padded, attention_mask=mask).logits.tolist()
print(json.dumps({"version": transformers.__version__, "class": type(model).__name__, "labels": model.config.id2label, "logits": logits, "together": together}))
"""


class Heads(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = {name: cls.write(name, rows) for name, rows in json.loads((DPO / "preferences.json").read_text()).items()}
        cls.texts = json.loads((HEADS / "texts.json").read_text())
        cls.data["texts"] = cls.write("texts", cls.texts)

    @classmethod
    def write(cls, name, rows):
        file = cls.folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return file

    def tune(self, name, head, *more, model=None, data=None, ranks=0, code=0, steps=10, rows=None):
        model = model or HEADS / ("reward" if head == "reward" else "classifier")
        rows = rows or (4 if head == "reward" else 6)
        result = fsdp_cli.run("fsdp-finetune", ["--model", model, "--tokenizer", DPO / "tokenizer", "--train-data", self.data[data or ("plain" if head == "reward" else "texts")],
                                                "--out-dir", self.runs, "--run-name", name, "--device", "cpu", "--batch-size", rows, "--total-batch-size", rows, *TRAINED,
                                                "--max-steps", steps, "--head", head, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def evaluate(self, model, data, *more):
        result = fsdp_cli.run("fsdp-eval", [model, "--data", self.data[data], "--tokenizer", DPO / "tokenizer", "--device", "cpu", "--json", *more])
        self.assertEqual(result.code, 0, str(result))
        return result.json()

    def steps(self, name):
        return [record for record in fsdp_cli.records(self.run_directory(name)) if "grad_norm" in record]

    def check(self, name, expected, head="reward"):
        steps = self.steps(name)
        self.assertEqual(len(steps), min(len(expected), len(steps)))
        for got, want in zip(steps, expected):
            self.assertLess(abs(got["loss"] - want["loss"]), LOSS)
            self.assertLess(abs(got["grad_norm"] / want["grad_norm"] - 1), NORM)
            if head != "reward":
                self.assertAlmostEqual(got["means"]["label_accuracy"], want["accuracy"], delta=1e-12)
                continue
            pairs = list(zip(want["chosen"], want["rejected"]))
            means = {"reward_chosen": sum(c for c, _ in pairs) / 4, "reward_rejected": sum(r for _, r in pairs) / 4,
                     "reward_margin": sum(c - r for c, r in pairs) / 4, "reward_accuracy": sum(c > r for c, r in pairs) / 4}
            self.assertEqual(set(got["means"]), set(means))
            for key, value in means.items():
                self.assertLess(abs(got["means"][key] - value), SCORE)

    def test_ten_steps_of_rewards_are_trls(self):
        result = self.tune("reward", "reward", "--save-final-hf", self.folder / "hf-reward")
        self.check("reward", EXPECTED["reward"]["steps"])
        self.assertRegex(result.err, r"prediction [+-]0\.[0-4]\d? %")  # of memory
        self.tune("centered", "reward", "--center-rewards-coefficient", 0.01, steps=3)
        self.check("centered", EXPECTED["reward_centered"]["steps"])
        after = EXPECTED["reward"]["after"]
        report = self.evaluate(self.folder / "hf-reward", "plain", "--log-probs", self.folder / "rewards.npy")
        self.assertLess(abs(report["reward_chosen"] - sum(after["chosen"]) / 4), SCORE)
        self.assertLess(abs(report["reward_rejected"] - sum(after["rejected"]) / 4), SCORE)
        self.assertEqual(report["reward_accuracy"], 1)
        self.assertNotIn("logps_chosen", report)
        rewards = numpy.load(self.folder / "rewards.npy").reshape(4, 2)
        numpy.testing.assert_allclose(rewards, numpy.stack([after["chosen"], after["rejected"]], 1), atol=SCORE)
        self.opens_alike("hf-reward", [pair[side] for pair in EXPECTED["reward"]["ids"]["plain"] for side in ("chosen", "rejected")], rewards.reshape(-1, 1))

    def test_ten_steps_of_labels_are_those_of_transformers(self):
        self.tune("labels", "classify", "--save-final-hf", self.folder / "hf-labels")
        self.check("labels", EXPECTED["classifier"]["steps"], "classify")
        logits = numpy.array(EXPECTED["classifier"]["after"]["logits"])
        report = self.evaluate(self.folder / "hf-labels", "texts")
        log_probs = logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
        loss = -numpy.mean([row[text["label"]] for row, text in zip(log_probs, self.texts)])
        self.assertLess(abs(report["loss"] - loss), SCORE)
        self.assertEqual((report["texts"], report["label_accuracy"], report["label_f1"], report["label_auc"]), (6, 1, 1, 1))
        self.assertLess(abs(report["calibration_error"] - numpy.mean(1 - numpy.exp(log_probs.max(-1)))), SCORE)  # all are right
        self.assertEqual(report["confusion"], [[2, 0, 0], [0, 2, 0], [0, 0, 2]])
        self.assertEqual([label["name"] for label in report["labels"]], EXPECTED["classifier"]["labels"])
        self.opens_alike("hf-labels", EXPECTED["classifier"]["ids"], logits)

    def opens_alike(self, export, ids, logits):
        """Each version of transformers that is here opens the export with these logits, also of padded texts."""
        for version in ("", "4.57.6", "5.24.0"):
            apart = ROOT / ".deps" / f"transformers=={version}"
            if version and not apart.is_dir():
                continue
            shown = subprocess.run([sys.executable, "-c", OPEN_EXPORT, str(apart) if version else "", str(self.folder / export), json.dumps(ids)],
                                   capture_output=True, text=True, check=False)
            if not version and "No module named" in shown.stderr:
                self.skipTest("transformers is not installed")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            opened = json.loads(shown.stdout.splitlines()[-1])
            self.assertEqual(opened["class"], "LlamaForSequenceClassification")
            numpy.testing.assert_allclose(opened["logits"], logits, atol=SCORE)
            numpy.testing.assert_allclose(opened["together"], logits, atol=SCORE)

    def test_steps_of_an_adapter_are_trls(self):
        start = self.folder / "start"
        shutil.copytree(HEADS / "lora", start, dirs_exist_ok=True)
        score = safetensors.numpy.load_file(HEADS / "reward" / "model.safetensors")["score.weight"]
        trl_cli.write_initial_adapter(start / "adapter_model.safetensors", EXPECTED["reward_lora"]["trained"].items(), EXPECTED["seed"], {"score.weight": score})
        self.tune("lora", "reward", "--adapter", start, "--save-final-hf", self.folder / "hf-lora", "--save-final-adapter", self.folder / "adapter", steps=5)
        self.check("lora", EXPECTED["reward_lora"]["steps"])
        trained = safetensors.numpy.load_file(HEADS / "lora" / "adapter_model.safetensors")
        ours = safetensors.numpy.load_file(self.folder / "adapter" / "adapter_model.safetensors")
        self.assertEqual(set(ours), set(trained))
        for name, values in trained.items():
            numpy.testing.assert_allclose(ours[name], values, atol=2e-5)  # AdamW moves small gradients by lr, whatever their size
        config = json.loads((self.folder / "adapter" / "adapter_config.json").read_text())
        self.assertEqual((config["task_type"], config["modules_to_save"]), ("SEQ_CLS", ["score"]))
        merged = self.evaluate(self.folder / "hf-lora", "plain")
        beside = self.evaluate(HEADS / "reward", "plain", "--adapter", self.folder / "adapter")
        of_run = self.evaluate(self.run_directory("lora"), "plain")
        for report in (beside, of_run):
            self.assertLess(abs(report["reward_margin"] - merged["reward_margin"]), SCORE)

    def test_any_ranks_strategies_and_layouts_train_alike(self):
        # The later --batch-size counts; micro-batches of one row are accumulated. A step has four rows, or six.
        alone = {"accumulated": (["--batch-size", 1], 1), "recomputed": (["--activation-checkpointing", "all"], 1)}
        variants = {"reward": {"two": (["--batch-size", 2], 2), "no-shard": (["--batch-size", 2, "--sharding", "no-shard"], 2),
                               "hybrid": (["--batch-size", 1, "--sharding", "hybrid-grad-shard", "--shard-group-size", 2], 4)},
                    "classify": {"three": (["--batch-size", 2], 3), "grad-shard": (["--batch-size", 3, "--sharding", "grad-shard"], 2)}}
        for head, expected in (("reward", EXPECTED["reward"]["steps"]), ("classify", EXPECTED["classifier"]["steps"])):
            for name, (more, ranks) in {**alone, **variants[head]}.items():
                with self.subTest(f"{head} {name}"):
                    self.tune(f"{head}-{name}", head, *more, ranks=ranks, steps=4)
                    self.check(f"{head}-{name}", expected[:4], head)
            self.tune(f"{head}-packed", head, "--pack", "--seq-len", 110, "--total-batch-size", 1, "--batch-size", 1, steps=3)
            self.check(f"{head}-packed", expected[:3], head)

    def test_a_restart_goes_on(self):
        self.tune("whole", "classify", steps=6)
        self.tune("parts", "classify", steps=3)
        resumed = ["--restart-checkpoint-file", "latest", "--out-dir", self.runs, "--run-name", "parts", "--max-steps", 6, "--device", "cpu", "--batch-size", 6]
        self.assertEqual(fsdp_cli.run("fsdp-finetune", resumed).code, 0)
        self.assertEqual([s["loss"] for s in self.steps("parts")], [s["loss"] for s in self.steps("whole")])

    def test_a_language_model_gets_a_head(self):
        """The data name its labels; through checkpoint, adapter, merge and conversion."""
        named = [{"text": row["text"], "label": EXPECTED["classifier"]["labels"][row["label"]]} for row in self.texts]
        self.data["named"] = self.write("named", named)
        for name, more in (("whole-head", []), ("lora-head", ["--lora-rank", 4])):
            result = self.tune(name, "classify", *more, "--save-final-hf", self.folder / name, "--val-data", self.data["named"], "--eval-every", 2,
                               "--keep-best", "label_accuracy", model=DPO / "base", data="named", steps=4)
            self.assertIn("labels    3: boats, colours, weather", result.err)
            config = json.loads((self.folder / name / "config.json").read_text())
            self.assertEqual(config["id2label"], {"0": "boats", "1": "colours", "2": "weather"})
            self.assertEqual(config["pad_token_id"], EXPECTED["pad_token_id"])
            tensors = safetensors.numpy.load_file(self.folder / name / "model.safetensors")
            self.assertEqual(tensors["score.weight"].shape, (3, 20))
            self.assertNotIn("lm_head.weight", tensors)
            reports = [self.evaluate(where, "named") for where in (self.folder / name, self.run_directory(name))]
            self.assertEqual(reports[0]["confusion"], reports[1]["confusion"])
            self.assertLess(abs(reports[0]["loss"] - reports[1]["loss"]), SCORE)
            self.assertTrue((self.run_directory(name) / "checkpoints" / "best").exists())
        first = {name: self.steps(name)[0] for name in ("whole-head", "lora-head")}
        self.assertEqual(first["whole-head"]["loss"], first["lora-head"]["loss"])  # the new head is the same
        adapter = self.run_directory("lora-head") / "adapter"
        result = fsdp_cli.run("fsdp-ckpt-convert", [DPO / "base", self.folder / "merged", "--to", "hf", "--merge-adapter", adapter])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual((self.folder / "merged" / "model.safetensors").read_bytes(), (self.folder / "lora-head" / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((self.folder / "merged" / "config.json").read_text())["id2label"], {str(i): f"LABEL_{i}" for i in range(3)})
        beside = fsdp_cli.run("fsdp-eval", [DPO / "base", "--adapter", adapter, "--data", self.data["texts"], "--tokenizer", DPO / "tokenizer", "--device", "cpu", "--json"])
        self.assertEqual(beside.json()["confusion"], self.evaluate(self.folder / "merged", "texts")["confusion"])

    def test_token_files_train_as_their_texts(self):
        for head, data, more in (("reward", "plain", []), ("classify", "texts", ["--labels", *EXPECTED["classifier"]["labels"]])):
            tokens = self.folder / f"{head}.h5"
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.data[data], "--tokenizer", DPO / "tokenizer", "--output", tokens,
                                                    "--head", head, "--pad-token-id", EXPECTED["pad_token_id"], *more])
            self.assertEqual(result.code, 0, str(result))
            self.data[f"{head}-tokens"] = tokens
            self.tune(f"{head}-of-tokens", head, data=f"{head}-tokens", steps=3)
            self.check(f"{head}-of-tokens", EXPECTED["reward" if head == "reward" else "classifier"]["steps"][:3], head)
        with h5py.File(self.folder / "reward.h5") as file:
            tokens, offsets, mask = file["tokens"][:], file["offsets"][:], file["loss_mask"][:]
        documents = [tokens[a:b].tolist() for a, b in zip(offsets, offsets[1:])]
        for i, pair in enumerate(EXPECTED["reward"]["ids"]["plain"]):
            self.assertEqual(documents[2 * i:2 * i + 2], [pair["chosen"] + [0], pair["rejected"] + [0]])
        self.assertEqual([int(mask[end - 1]) for end in offsets[1:]], [1] * len(documents))
        self.assertEqual(int(mask.sum()), len(documents))

    def test_padding_at_the_end_is_no_end(self):
        """Ids of padding at the end of a text are none of it, as transformers finds the last token."""
        padded = [{"text": row["text"] + "<|pad|><|pad|>", "label": row["label"]} for row in self.texts]
        self.data["padded"] = self.write("padded", padded)
        self.tune("of-padded", "classify", data="padded", steps=2)
        self.check("of-padded", EXPECTED["classifier"]["steps"][:2], "classify")

    def test_conversations_have_the_ids_of_trl(self):
        tokens = self.folder / "talks.h5"
        result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.data["conversations"], "--tokenizer", DPO / "tokenizer", "--output", tokens, "--head", "reward"])
        self.assertEqual(result.code, 0, str(result))
        with h5py.File(tokens) as file:
            ids, offsets = file["tokens"][:], file["offsets"][:]
        for i, pair in enumerate(EXPECTED["reward"]["ids"]["conversations"]):
            for side, (a, b) in zip(("chosen", "rejected"), zip(offsets[2 * i:2 * i + 2], offsets[2 * i + 1:2 * i + 3])):
                self.assertEqual(ids[a:b].tolist(), pair[side] + [0])
        talks = [{"messages": [{"role": "user", "content": row["text"]}], "label": row["label"]} for row in self.texts]
        self.data["labelled-talks"] = self.write("labelled-talks", talks)
        self.tune("talks", "classify", data="labelled-talks", steps=1)
        self.assertTrue(math.isfinite(self.steps("talks")[0]["loss"]))

    def test_a_gpt2_gets_a_head(self):
        """A GPT-2, whose head is its embedding: steps, an export, the same figures of both."""
        result = fsdp_cli.run("fsdp-finetune", ["--model", "mingpt", "--num-layers", 2, "--num-heads", 2, "--embed-size", 16, "--vocab-size", 312, "--seq-len", 32,
                                                "--tokenizer", DPO / "tokenizer", "--train-data", self.data["texts"], "--out-dir", self.runs, "--run-name", "gpt", "--device", "cpu",
                                                "--batch-size", 6, "--max-steps", 3, "--head", "classify", "--save-final-hf", self.folder / "gpt"])
        self.assertEqual(result.code, 0, str(result))
        config = json.loads((self.folder / "gpt" / "config.json").read_text())
        self.assertEqual(config["architectures"], ["GPT2ForSequenceClassification"])
        reports = [self.evaluate(where, "texts") for where in (self.folder / "gpt", self.run_directory("gpt"))]
        self.assertLess(abs(reports[0]["loss"] - reports[1]["loss"]), SCORE)

    def test_padding_is_the_same_everywhere(self):
        """A base without padding of its own: run, export, merge and adapter beside the base have the tokenizer's."""
        padded = [{"text": row["text"] + "<|pad|>", "label": row["label"]} for row in self.texts]
        self.data["ends-padded"] = self.write("ends-padded", padded)
        self.tune("padded-lora", "classify", "--lora-rank", 4, "--lr", "1e-2", "--save-final-hf", self.folder / "padded-hf", "--save-final-adapter",
                  self.folder / "padded-adapter", model=DPO / "base", data="ends-padded", steps=4)
        result = fsdp_cli.run("fsdp-ckpt-convert", [DPO / "base", self.folder / "padded-merged", "--to", "hf", "--merge-adapter", self.folder / "padded-adapter"])
        self.assertEqual(result.code, 0, str(result))
        for export in ("padded-hf", "padded-merged"):
            self.assertEqual(json.loads((self.folder / export / "config.json").read_text())["pad_token_id"], EXPECTED["pad_token_id"])
        reports = [self.evaluate(where, "ends-padded", *more) for where, *more in
                   ((self.run_directory("padded-lora"),), (self.folder / "padded-hf",), (self.folder / "padded-merged",), (DPO / "base", "--adapter", self.folder / "padded-adapter"))]
        for report in reports[1:]:
            self.assertEqual(report["confusion"], reports[0]["confusion"])
            self.assertLess(abs(report["loss"] - reports[0]["loss"]), SCORE)
        self.tune("padded-on", "classify", "--adapter", self.folder / "padded-adapter", model=DPO / "base", data="ends-padded", steps=1)
        self.assertLess(abs(self.steps("padded-on")[0]["loss"] - reports[0]["loss"]), SCORE)
        for head, more, words in (("reward", [], "train it by --head classify"), ("classify", ["--labels", "a", "b"], "the scores of 3 labels, and --labels names 2")):
            self.assertIn(words, self.tune("x", head, "--adapter", self.folder / "padded-adapter", *more, model=DPO / "base", code=2).err)
        without = self.folder / "without-padding"
        shutil.copytree(HEADS / "classifier", without)
        config = json.loads((without / "config.json").read_text())
        del config["pad_token_id"]
        (without / "config.json").write_text(json.dumps(config))
        self.data["padded-twice"] = self.write("padded-twice", [{"text": row["text"] + "<|pad|><|pad|>", "label": row["label"]} for row in self.texts])
        self.tune("own-head", "classify", model=without, data="padded-twice", steps=2)
        self.check("own-head", EXPECTED["classifier"]["steps"][:2], "classify")

    def test_long_texts(self):
        """Texts are cut before their label, and told; token files with longer ones are refused."""
        self.data["long"] = self.write("long", [{"text": row["text"] + " river boat noon" * 4, "label": row["label"]} for row in self.texts])
        result = self.tune("long", "classify", "--seq-len", 16, data="long", steps=1)
        self.assertIn("6 of 6 texts are longer", result.err)
        tokens = self.folder / "long.h5"
        labels = ["--labels", *EXPECTED["classifier"]["labels"]]
        made = ["tokens", "--input", self.data["long"], "--tokenizer", DPO / "tokenizer", "--output", tokens, "--head", "classify", *labels]
        self.assertEqual(fsdp_cli.run("fsdp-download", made).code, 0)
        self.data["long-tokens"] = tokens
        self.assertIn("would lose it", self.tune("x", "classify", "--seq-len", 16, data="long-tokens", code=4).err)
        result = fsdp_cli.run("fsdp-eval", [HEADS / "classifier", "--data", tokens, "--seq-len", 16, "--tokenizer", DPO / "tokenizer", "--device", "cpu"])
        self.assertEqual(result.code, 4, str(result))
        self.assertEqual(fsdp_cli.run("fsdp-download", [*made, "--max-length", 16]).code, 0)
        self.tune("long-cut", "classify", "--seq-len", 16, data="long-tokens", steps=1)
        self.assertEqual(self.steps("long-cut")[0]["loss"], self.steps("long")[0]["loss"])
        self.assertEqual(fsdp_cli.run("fsdp-download", [*made, "--max-length", 16, "--pad-token-id", 5]).code, 0)
        self.assertIn("the padding 5, and those of the model end before the padding 311", self.tune("x", "classify", "--seq-len", 16, data="long-tokens", code=2).err)

    def test_formats_of_language_models_are_refused(self):
        for name in ("gguf", "megatron"):
            output = self.folder / f"as-{name}"
            result = fsdp_cli.run("fsdp-ckpt-convert", [HEADS / "classifier", output, "--to", name])
            self.assertEqual(result.code, 2, str(result))
            self.assertIn("scores texts", result.err)
            self.assertFalse(output.exists())

    def test_what_is_refused(self):
        bad = {"no-label": ([{"text": "boat"}], "has no 'label'"), "range": ([{"text": "boat", "label": 3}], "the labels are 0 to 2"),
               "name": ([{"text": "boat", "label": "cars"}], "the labels are boats, colours, weather"),
               "negative": ([{"text": "boat", "label": -1}], "'label' is -1"), "no-text": ([{"label": 1}], "has no 'text'"),
               "kind": ([{"text": "boat", "label": [1]}], "'label' is array"), "null": ([{"text": "boat", "label": None}], "'label' is null")}
        for name, (rows, words) in bad.items():
            self.data[name] = self.write(name, rows)
            self.assertIn(words, self.tune("x", "classify", data=name, code=4).err)
        self.data["mixed"] = self.write("mixed", [{"text": "boat", "label": 0}, {"text": "red", "label": "a"}])
        self.assertIn("'label' is a name, and of the samples before not", self.tune("x", "classify", data="mixed", model=DPO / "base", code=4).err)
        self.data["one"] = self.write("one", [{"text": "boat", "label": 0}])
        self.assertIn("there is one (blanks part those of --labels): LABEL_0", self.tune("x", "classify", data="one", model=DPO / "base", code=2).err)
        for options, words in ((["--objective", "dpo"], "--head has no tokens"), (["--labels", "a", "b"], "and the model has boats"),
                               (["--center-rewards-coefficient", 1], "belongs to --head reward"), (["--stream"], "--stream"), (["--prompt", "boat"], "--prompt"),
                               (["--data-form", "messages"], "--data-form")):
            self.assertIn(words, self.tune("x", "classify", *options, code=2).err)
        self.assertIn("a reward", self.tune("x", "classify", model=HEADS / "reward", code=2).err)
        self.assertIn("is a classifier", self.tune("x", "reward", model=HEADS / "classifier", code=2).err)
        self.assertIn("train it by --head classify", self.tune("x", "next-token", model=HEADS / "classifier", code=2).err)
        self.assertIn("--labels belongs to --head classify", self.tune("x", "reward", "--labels", "a", code=2).err)
        for options in (["--prompt", "boat"], ["--reference", "x.npy", "--data", self.data["plain"]]):
            result = fsdp_cli.run("fsdp-eval", [HEADS / "reward", "--tokenizer", DPO / "tokenizer", "--device", "cpu", *options])
            self.assertEqual(result.code, 2, str(result))
            self.assertIn("gives a text one number", result.err)
        broken = self.folder / "broken"
        self.data["two"] = self.write("two", self.texts[:2])
        for field, value, words in (("id2label", {"0": "a", "2": "b"}, "has no name for 1"), ("id2label", {"0": "a", "1": "a"}, "two labels are called 'a'"),
                                    ("problem_type", "multi_label_classification", "problem_type"), ("problem_type", "regression", "is regression"), ("id2label", {"0": "a", "1": "b"}, "'score.weight' has shape [3, 20], the model needs [2, 20]")):
            shutil.copytree(HEADS / "classifier", broken, dirs_exist_ok=True)
            config = json.loads((HEADS / "classifier" / "config.json").read_text())
            (broken / "config.json").write_text(json.dumps({**config, field: value}))
            self.assertIn(words, self.tune("x", "classify", model=broken, data="two", code=4).err)

    def test_predicted_before_training(self):
        result = fsdp_cli.run("fsdp-memprobe", ["--model", DPO / "base", "--head", "reward", "--device", "cpu", "--batch-size", 4, "--seq-len", 16, "--json"])
        self.assertEqual(result.code, 0, str(result))
        plain = fsdp_cli.run("fsdp-memprobe", ["--model", DPO / "base", "--device", "cpu", "--batch-size", 4, "--seq-len", 16, "--json"])
        self.assertNotEqual(result.json(), plain.json())


if __name__ == "__main__":
    fsdp_cli.main()
