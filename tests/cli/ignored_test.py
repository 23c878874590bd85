"""Programs name all of their input that they did not use. Listed means without influence, not listed means read or refused."""

import json
import shutil

import families_cli
import fsdp_cli
import llama_cli
from families_cli import folder_of

# Values of all kinds that a key of a JSON file can be given.
OTHERS = [None, True, False, 0, 7, 0.625, "?", [], {}]


class Ignored(families_cli.Case):
    def copy(self, model):
        folder = self.folder / model
        shutil.copytree(folder_of(model), folder, dirs_exist_ok=True)
        return folder

    def results(self, folder, rows):
        """Returns exit code and loss, and what is ignored of config.json."""
        result = fsdp_cli.run("fsdp-eval", [folder, "--json", "--quiet", "--device", "cpu", "--data", rows, "--precision", "float32"])
        if result.code:
            return result.code, None, []
        report = result.json()
        return 0, report["loss"], report["ignored"].get(str(folder / "config.json"), [])

    def test_each_key_of_config_json_is_used_refused_or_listed(self):
        for model in fsdp_cli.share(["mistral_window", "qwen3", "gemma3", "gpt2", "phi3", "olmo2"], 3):
            folder, rows = self.copy(model), self.documents(model)
            config = json.loads((folder / "config.json").read_text()) | {"of_somebody": 3}
            for key in config:
                with self.subTest(model, key=key):
                    def changed(value, key=key, config=config, folder=folder):
                        (folder / "config.json").write_text(json.dumps(config | {key: value}))
                    changed(config[key])
                    was = self.results(folder, rows)
                    self.assertEqual(was[0], 0)
                    listed = key in was[2]
                    for value in OTHERS if listed else []:
                        changed(value)
                        self.assertEqual(self.results(folder, rows)[:2], was[:2], "listed as ignored, and yet it counts")
                    if key == "of_somebody":
                        self.assertTrue(listed)

    def test_files_and_keys_beside_a_model(self):
        folder, rows = self.copy("qwen3"), self.documents("qwen3")
        for name in ("expected.json", "inputs.json", "logits_rows.safetensors", "config_v5.json"):
            (folder / name).unlink(missing_ok=True)
        (folder / "README.md").write_text("of somebody")
        (folder / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": 2}')
        result = fsdp_cli.run("fsdp-eval", [folder, "--device", "cpu", "--data", rows])
        self.assertEqual(result.code, 0, str(result))
        self.assertIn(f"ignored   {folder}: README.md\n", result.err)
        self.assertIn(f"ignored   {folder}/generation_config.json: temperature\n", result.err)
        with self.subTest("training"):
            report = self.tune("with-ignored", rows, "--max-steps", 1, "--batch-size", 1, "--no-save", "--json", model=folder).json()
            self.assertEqual(report["ignored"][str(folder)], ["README.md"])
        with self.subTest("memory"):
            result = fsdp_cli.run("fsdp-memprobe", ["--model", folder, "--batch-size", 1, "--device", "cpu", "--json"])
            self.assertIn("use_cache", result.json()["ignored"][str(folder / "config.json")])

    def test_what_the_program_writes_itself_is_not_told(self):
        """Keys for other programs in its exports and adapters, and the optimizer's state of its own checkpoints."""
        model, rows, exported = llama_cli.make_snapshot(self.folder / "plain", files=1, dtype="F32"), self.documents("qwen3"), self.folder / "exported"
        tune = ["--max-steps", 1, "--batch-size", 1]
        self.tune("own", rows, *tune, "--save-final-hf", exported, model=model)
        self.tune("own-lora", rows, *tune, "--lora-rank", 2, model=exported)
        self.assertIn("architectures", (exported / "config.json").read_text())
        self.assertIn("torch_dtype", (exported / "config.json").read_text())
        adapter = self.run_directory("own-lora") / "adapter"
        results = [fsdp_cli.run("fsdp-eval", [*what, "--device", "cpu", "--data", rows]) for what in
                   ([exported], [self.run_directory("own")], [self.run_directory("own-lora")], [exported, "--adapter", adapter])]
        results.append(self.tune("own", rows, "--max-steps", 2, "--batch-size", 1, "--restart", "latest", model=model))
        for result in results:
            self.assertEqual(result.code, 0, str(result))
            self.assertNotIn("ignored ", result.err)
        config = json.loads((exported / "config.json").read_text()) | {"architectures": ["Other"], "of_somebody": 3}
        (exported / "config.json").write_text(json.dumps(config))
        self.assertIn("config.json: architectures, of_somebody", fsdp_cli.run("fsdp-eval", [exported, "--device", "cpu", "--data", rows]).err)

    def test_keys_and_columns_of_data(self):
        """Lists those of all records, in all forms of files."""
        records = [{"text": "a b c " * 200, "id": 1}, {"url": "x", "text": "d e"}]
        chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "system": "s", "source": 1}]
        pairs = [{"prompt": "a", "completion": "b", "instruction": "c"}]
        alpaca = [{"instruction": "a", "input": "b", "output": "c", "text_hash": 7}]
        for name, samples, expected in (("texts.jsonl", records, ["id", "url"]), ("chats.jsonl", chats, ["source"]),
                                        ("pairs.jsonl", pairs, ["instruction"]), ("alpaca.jsonl", alpaca, ["text_hash"])):
            (self.folder / name).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
            self.assert_ignored(name, expected)
        (self.folder / "table.csv").write_text(f"id,text\n1,{'a b ' * 200}\n")
        self.assert_ignored("table.csv", ["id"])

    def assert_ignored(self, name, expected):
        template = self.folder / "plain.jinja"
        template.write_text("{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}")
        template = ["--chat-template", template] if name.startswith(("chats", "alpaca")) else []
        result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.folder / name, "--tokenizer", "gpt2", "--output", self.folder / f"{name}.h5",
                                                "--json", *template])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(result.json()["ignored"], {str(self.folder / name): expected})
        self.assertIn(f"ignored   {self.folder / name}: {', '.join(expected)}\n", result.err)

    def test_tensors_that_an_evaluation_or_a_conversion_leaves_out(self):
        model, rows = llama_cli.make_snapshot(self.folder / "small", files=1, dtype="F32"), self.documents("qwen3")
        self.tune("two", rows, "--max-steps", 1, "--batch-size", 1, model=model)
        checkpoint = self.run_directory("two") / "checkpoints/step-00000001"
        report = self.evaluate(checkpoint, "--data", rows)
        self.assertNotIn(str(checkpoint), report["ignored"], "a run's optimizer is for restarts, which no evaluation makes")
        for target in ("hf", "torch"):
            result = fsdp_cli.run("fsdp-ckpt-convert", [checkpoint, self.folder / f"out.{target}", "--to", target, "--json"])
            self.assertEqual(result.code, 0, str(result))
            ignored = result.json()["ignored"].get(str(checkpoint), [])
            with self.subTest(target):
                self.assertEqual("optim.state.model.layers.*.mlp.up_proj.weight.exp_avg" in ignored, target == "hf")
                self.assertFalse([name for name in ignored if name.startswith("model.")])


if __name__ == "__main__":
    fsdp_cli.main()
