"""Training and evaluation on conversations: transformers' loss and gradient with masks, from token files and from lines."""

import json
import shutil

import fsdp_cli
import llama_cli
from conversations_cli import CHAT, PAIRS, TEMPLATES, ConversationsCase, tokenizer, with_answer

# Float32 sums in another order; the fixtures' float32 differs from float64 by up to 6.5e-7, gradients by 1e-7.
LOSS, GRADIENT = 5e-6, 1e-5
FROZEN = ["--lr", 0, "--max-steps", 1, "--no-shuffle", "--no-save", "--weight-decay", 0, "--precision", "float32"]
MODEL = CHAT / "model"


class Training(ConversationsCase):
    def tune(self, name, data, *more, model=MODEL, ranks=0, code=0):
        result = fsdp_cli.run("fsdp-finetune", ["--model", model, "--train-data", data, "--out-dir", self.runs, "--run-name", name, *fsdp_cli.COMMON, *more], ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def check(self, name, batch):
        step = fsdp_cli.steps(self.run_directory(name))[0]
        self.assertEqual(step["tokens"], batch["targets"])
        self.assertLess(abs(step["loss"] - batch["loss"]), LOSS)
        self.assertLess(abs(step["grad_norm"] / batch["total_grad_norm"] - 1), GRADIENT)
        self.assertGreater(abs(step["loss"] - batch["loss_if_every_token_counted"]), 100 * LOSS)

    def test_loss_and_gradient_of_all_conversations(self):
        """Token files on one rank and JSON Lines on two give the same rows and the same targets."""
        for i, (template, truth) in enumerate(TEMPLATES.items()):
            with self.subTest(template):
                rows, vocabulary = truth["batch"]["rows"], tokenizer(truth["vocabulary"])
                data = self.write(with_answer(template), f"{template}.jsonl")
                options = ["--chat-template", template, "--tokenizer", vocabulary]
                ranks = 1 + i % 2
                if ranks == 1:
                    self.tokens(data, truth["vocabulary"], "--chat-template", template, name=f"{template}.h5")
                    data, options = self.folder / f"{template}.h5", ["--tokenizer", vocabulary]
                self.tune(template, data, *FROZEN, *options, "--batch-size", rows // ranks, ranks=ranks)
                self.check(template, truth["batch"])

    def test_prompts_and_completions(self):
        for vocabulary, how in (("chatml", "joint"), ("gemma", "joint"), ("llama2", "separate")):
            with self.subTest(vocabulary, how=how):
                name = f"pairs-{vocabulary}"
                self.tune(name, CHAT / "prompt_completion.jsonl", *FROZEN, "--tokenizer", tokenizer(vocabulary), "--pairs", how, "--batch-size", 6)
                self.check(name, PAIRS[vocabulary][f"batch_{how}"])

    def test_all_tokens_where_that_is_asked_for(self):
        truth = TEMPLATES["llama3"]["batch"]
        self.tune("all", self.write(with_answer("llama3")), *FROZEN, "--tokenizer", tokenizer("llama3"), "--train-on", "all", "--batch-size", truth["rows"])
        step = fsdp_cli.steps(self.run_directory("all"))[0]
        self.assertLess(abs(step["loss"] - truth["loss_if_every_token_counted"]), LOSS)

    def test_evaluation_counts_the_same_tokens(self):
        batch = TEMPLATES["gemma3"]["batch"]
        data = self.write(with_answer("gemma3"))
        self.tokens(data, "gemma", "--chat-template", "gemma3")
        options = ["--precision", "float32", "--tokenizer", tokenizer("gemma")]
        for source, more, ranks in ((data, ["--chat-template", "gemma3"], 2), (self.folder / "out.h5", [], 0)):
            report = self.evaluate(MODEL, *options, "--data", source, *more, ranks=ranks)
            self.assertEqual(report["tokens"], batch["targets"])
            self.assertLess(abs(report["loss"] - batch["loss"]), LOSS)

    def test_questions_without_answers_change_no_weights(self):
        """Samples without answers are left out, as are answers that --seq-len cuts off; the loss of the others stays the same."""
        truth = TEMPLATES["chatml"]["batch"]
        lines = with_answer("chatml")
        question = json.dumps({"messages": [{"role": "user", "content": "Nobody answers."}]})
        result = self.tune("skipped", self.write([question, *lines, question]), *FROZEN, "--tokenizer", tokenizer("chatml"), "--batch-size", truth["rows"])
        self.assertIn("2 samples without a token that counts are left out, the first is", result.err)
        self.check("skipped", truth)
        long = json.dumps({"messages": [{"role": "user", "content": "Why? " * 200}, {"role": "assistant", "content": "So."}]})
        data = self.write([*lines, long])
        result = self.tune("cut", data, *FROZEN, "--tokenizer", tokenizer("chatml"), "--batch-size", truth["rows"] + 1, "--seq-len", truth["length"], "--documents")
        self.assertIn("1 of 9 texts have no token that counts", result.err)
        self.check("cut", truth)

    def test_samples_are_answers_where_that_is_asked_for(self):
        """Samples are the checkpoint's answers to the question, not continuations of the question as a text."""
        chat, ask = ["--chat-template", "gemma3", "--tokenizer", tokenizer("gemma")], ["--sample-prompt", "Why?", "--sample-tokens", 5]
        for data, options in ((self.write(with_answer("gemma3")), chat), (self.folder / "sampled.h5", chat[2:])):
            if not data.exists():
                self.tokens(self.folder / "in.jsonl", "gemma", *chat[:2], name=data.name)
            name = data.name.replace(".", "-")
            self.tune(name, data, *options, *ask, "--sample-chat", "--max-steps", 1, "--precision", "float32", "--batch-size", 2)
            sample = json.loads((self.run_directory(name) / "samples.jsonl").read_text().splitlines()[-1])
            how = ["--precision", "float32", "--temperature", 0, "--num-tokens", 5, "--prompt", "Why?"]
            answer = self.evaluate(self.run_directory(name) / "checkpoints/latest", *how, *chat, "--chat")
            plain = self.evaluate(self.run_directory(name) / "checkpoints/latest", *how, *chat)
            self.assertEqual(sample["prompt"], "Why?")
            self.assertEqual((sample["tokens_generated"], sample["text"]), (answer["tokens_generated"], answer["text"]))
            self.assertNotEqual(answer["tokens_generated"], plain["tokens_generated"])
        self.assert_refused(self.tune("alone", data, *options, "--sample-chat", "--max-steps", 1, code=2), 2, "--sample-prompt")
        untold = self.folder / "untold"
        shutil.copytree(tokenizer("gemma"), untold, copy_function=shutil.copyfile)
        config = json.loads((untold / "tokenizer_config.json").read_text())
        del config["chat_template"]
        (untold / "tokenizer_config.json").write_text(json.dumps(config))
        unknown = self.tune("unknown", self.write([{"text": "Some of it."}] * 4, "text.jsonl"), "--tokenizer", untold, *ask, "--sample-chat", "--max-steps", 1, code=2)
        self.assert_refused(unknown, 2, "--chat-template")

    def test_a_run_goes_on_with_its_template(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        data = self.write(with_answer("qwen2"), "resume.jsonl")
        common = ["--lr", "1e-2", "--lr-schedule", "constant", "--batch-size", 4, "--log-every", 1]
        options = ["--chat-template", "qwen2", "--tokenizer", tokenizer("chatml")]
        self.tune("whole", data, *common, *options, "--max-steps", 4, model=model)
        self.tune("parts", data, *common, *options, "--max-steps", 2, model=model)
        result = fsdp_cli.run("fsdp-finetune", ["--restart", "latest", "--out-dir", self.runs, "--run-name", "parts", "--max-steps", 4, *fsdp_cli.COMMON], 2)
        self.assertEqual(result.code, 0, str(result))
        self.assertNotIn("encoded ", result.err)  # reuses the earlier token file: same template, same file
        # Another number of ranks sums in another order.
        self.assertLess(fsdp_cli.difference(self.losses("parts"), self.losses("whole")), 1e-5)
        self.assertLess(self.losses("whole")[-1], self.losses("whole")[0])

    def test_a_model_keeps_the_template_of_its_run(self):
        """Exports, checkpoints and adapters have it, also when its file is gone; a tokenizer's own goes along as before."""
        data, jinja, own = self.write(with_answer("chatml"), "kept.jsonl"), self.folder / "kept.jinja", "chat_template.jinja"
        text = "ours " + TEMPLATES["chatml"]["template"]
        jinja.write_text(text)
        self.tokens(data, "chatml", "--chat-template", jinja, name="kept.h5")
        short = ["--max-steps", 1, "--precision", "float32", "--batch-size", 2, "--tokenizer", tokenizer("chatml")]
        hf, full, lora = self.folder / "kept-hf", self.folder / "kept.pt", ["--lora-rank", 2]
        result = self.tune("kept", data, *short, "--chat-template", jinja, "--save-final-hf", hf, "--save-final-full", full, ranks=2)
        self.assertIn(str(jinja), result.err)
        self.tune("kept-lora", self.folder / "kept.h5", *short, *lora, "--save-final-hf", self.folder / "kept-merged")
        jinja.unlink()
        older = self.folder / "older" / own
        older.parent.mkdir()
        older.write_text("older")
        result = self.tune("gone", self.folder / "kept.h5", *short, *lora, "--save-final-hf", self.folder / "gone-hf", "--save-final-adapter", older.parent)
        self.assertIn("does not go along", result.err)
        self.assertIn(f"{older} was there before", result.err)
        self.assertEqual(older.read_text(), "older")
        self.tune("own", data, *short, "--save-final-hf", self.folder / "own-hf")
        latest = self.run_directory("kept-lora") / "checkpoints" / "latest"
        made = [hf, self.folder / "kept-merged", self.run_directory("kept-lora") / "adapter"]
        for number, (source, options) in enumerate((
                (self.run_directory("kept") / "checkpoints" / "latest", []), (full, []), (MODEL, ["--merge-adapter", latest]), (MODEL, ["--merge-adapter", made[2]]))):
            made.append(self.folder / f"kept-{number}")
            result = fsdp_cli.run("fsdp-ckpt-convert", [source, made[-1], "--to", "hf", *options])
            self.assertEqual(result.code, 0, str(result))
            self.assertIn("trained with", result.err)
        made.append(self.folder / "kept-on")
        result = fsdp_cli.run("fsdp-finetune", ["--restart", "latest", "--out-dir", self.runs, "--run-name", "kept-lora", "--max-steps", 2, "--save-final-hf", made[-1], *fsdp_cli.COMMON])
        self.assertEqual(result.code, 0, str(result))
        for place in made:
            self.assertEqual((place / own).read_text(), text, place)
        # Questions are asked by it, too, unless another template is named.
        asked = [self.evaluate(place, "--prompt", "Why?", "--chat", "--num-tokens", 1, *more)["prompt_tokens"]
                 for place, more in ((hf, []), (self.run_directory("kept"), []), (latest, []), (full, ["--tokenizer", tokenizer("chatml")]),
                                     (hf, ["--chat-template", "chatml"]))]
        self.assertEqual(asked[1:4], [asked[0]] * 3)
        self.assertNotEqual(asked[4], asked[0])
        for place in (self.folder / "gone-hf", self.folder / "own-hf", self.run_directory("gone") / "adapter"):
            self.assertFalse((place / own).exists(), place)

    def test_a_model_without_a_template_says_so(self):
        model = llama_cli.make_snapshot(self.folder / "bare")
        result = self.tune("bare", self.write(with_answer("llama2")), "--max-steps", 1, model=model, code=2, ranks=2)
        self.assert_refused(result, 2, "has no chat template of its own", "--chat-template")
        self.tune("named", self.write(with_answer("llama2")), "--max-steps", 1, "--chat-template", "llama2", model=model)
        self.assertGreater(fsdp_cli.steps(self.run_directory("named"))[0]["tokens"], 0)


if __name__ == "__main__":
    fsdp_cli.main()
