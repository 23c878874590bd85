"""fsdp-ckpt-convert --to hf, gguf and megatron: what is written is the model of its config.json, or refused by name.

The models are those of tests/fixtures/families."""

import json
import shutil

import families_cli
import fsdp_cli
from families_cli import TOLERANCE, folder_of, truth

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

PROGRAM, BASE = "fsdp-ckpt-convert", "qwen3"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def weights():
    return load_file(folder_of(BASE) / "model.safetensors")


def inside(name):
    """The name with what activation checkpointing adds to each block."""
    return name.replace("model.layers.0.", "model.layers.0._checkpoint_wrapped_module.")


def of_peft(name):
    """peft's names of a model with adapters on the queries."""
    return "base_model.model." + name.replace("q_proj.weight", "q_proj.base_layer.weight")


def of_meta(name):
    places = {"model.embed_tokens": "tok_embeddings", "self_attn.q_proj": "attention.wq", "model.layers": "layers", "model.norm": "norm"}
    for ours, theirs in places.items():
        name = name.replace(ours, theirs)
    return name


WRAPPED = {"compiled": lambda name: "_orig_mod." + name, "fsdp": lambda name: "_fsdp_wrapped_module." + inside(name), "ddp": lambda name: "module." + name,
           "compiled ddp": lambda name: "_orig_mod.module." + name, "Lightning": lambda name: "net." + name, "peft's prefix": lambda name: "base_model.model." + name,
           "bare": lambda name: name.removeprefix("model.")}


class Fits(families_cli.Case):
    def saved(self, name, tensors):
        path = self.folder / f"{name.replace(' ', '-')}.pt"
        torch.save(tensors, path)
        return path

    def converted(self, source, name, *options, code=0):
        output = self.folder / name.replace(" ", "-")
        output.parent.mkdir(exist_ok=True)
        result = fsdp_cli.run(PROGRAM, [source, output, *options])
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(output.exists(), code == 0)
        return output, result

    def assert_base(self, folder):
        found, wanted = load_file(folder / "model.safetensors"), weights()
        self.assertEqual(sorted(found), sorted(wanted))
        self.assertEqual([name for name in wanted if not torch.equal(found[name], wanted[name])], [])

    def test_names_of_wrappers_are_the_models(self):
        base, _ = self.converted(folder_of(BASE), "base.gguf")
        for name, wrap in WRAPPED.items():
            with self.subTest(name):
                tensors = {wrap(key): tensor for key, tensor in weights().items()}
                source = self.saved(name, tensors)
                for nested, at in ((False, source), (True, self.saved(name + " nested", {"model": tensors, "step": 3}))):
                    output, _ = self.converted(at, f"{name} {nested} hf", "--to", "hf", "--config-from", folder_of(BASE))
                    self.assert_base(output)
                made, _ = self.converted(source, f"{name}.gguf", "--config-from", folder_of(BASE))
                self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", made, base]).code, 0)
                folder = self.folder / f"{name}-folder".replace(" ", "-")
                folder.mkdir()
                shutil.copyfile(folder_of(BASE) / "config.json", folder / "config.json")
                save_file(tensors, folder / "model.safetensors")
                report = self.evaluate(folder, "--precision", "float32", "--data", self.documents(BASE), "--batch-size", 2)
                self.assertLess(abs(report["loss"] - truth(BASE)["loss"]), TOLERANCE)
        megatron, _ = self.converted(self.folder / "compiled.pt", "megatron", "--to", "megatron", "--model-config", folder_of(BASE) / "config.json")
        self.assert_base(self.converted(megatron, "back", "--to", "hf", "--config-from", folder_of(BASE))[0])
        # An optimizer has the same names.
        optimizer = {"state": {"_orig_mod." + key: {"exp_avg": 2 * tensor, "exp_avg_sq": tensor, "step": torch.tensor(3.0)} for key, tensor in weights().items()},
                     "param_groups": [{"lr": 0.1, "params": ["_orig_mod." + key for key in weights()]}]}
        source = self.saved("trained", {"model": {"_orig_mod." + key: tensor for key, tensor in weights().items()}, "optim": optimizer})
        _, result = self.converted(source, "trained-megatron", "--to", "megatron", "--model-config", folder_of(BASE) / "config.json")
        self.assertNotIn("exp_avg is left out", result.err)

    def test_what_does_not_fit_is_refused_by_name(self):
        whole = weights()
        adapters = {"base_model.model." + QUERY.replace(".weight", f".lora_{part}.default.weight"): torch.zeros(2, 2) for part in "AB"}
        other = self.folder / "other"
        other.mkdir()
        config = json.loads((folder_of(BASE) / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] - 4}))
        last = config["num_hidden_layers"] - 1
        gguf, _ = self.converted(folder_of(BASE), "as.gguf", "--dtype", "f32")
        cases = {
            "peft": ({of_peft(key): tensor for key, tensor in whole.items()} | adapters, folder_of(BASE), ["q_proj.base_layer.weight", "peft", "merge_and_unload"]),
            "layer": ({key: tensor for key, tensor in whole.items() if f"layers.{last}." not in key}, folder_of(BASE), [f"model.layers.{last}.", "is missing"]),
            "norm": ({key: tensor for key, tensor in whole.items() if key != "model.norm.weight"}, folder_of(BASE), ["model.norm.weight", "is missing"]),
            "sizes": (whole, other, ["mlp.gate_proj.weight", "has shape", "the model needs"]),
            "more": (whole | {"v_head.summary.weight": torch.zeros(1, 4)}, folder_of(BASE), ["v_head.summary.weight", "no place"]),
            "Meta": ({of_meta(key): tensor for key, tensor in whole.items()}, folder_of(BASE), ["Meta's names", "--map llama-to-hf"]),
            "two": ({f"{part}.{key}": tensor for key, tensor in whole.items() for part in ("actor", "critic")}, folder_of(BASE), ["actor.", "critic.", "--include"])}
        for name, (tensors, config_from, words) in cases.items():
            with self.subTest(name):
                source = self.saved(name, tensors)
                _, result = self.converted(source, f"{name}-hf", "--to", "hf", "--config-from", config_from, code=4)
                self.assert_refused(result, 4, *words)
        output, _ = self.converted(gguf, "gguf-hf", "--to", "hf", "--config-from", folder_of(BASE))
        self.assert_base(output)
        _, result = self.converted(self.folder / "two.pt", "actor-hf", "--to", "hf", "--config-from", folder_of(BASE), "--include", "actor.*")
        self.assert_base(self.folder / "actor-hf")
        result = fsdp_cli.run("fsdp-eval", [self.folder / "peft.pt", "--model-config", folder_of(BASE), "--data", self.documents(BASE)])
        self.assert_refused(result, 4, "q_proj.base_layer.weight", "adapter")

    def test_options_that_leave_out_are_told(self):
        for name, options, word in (("exclude", ["--exclude", "*layers.1.*"], "model.layers.1."), ("rename", ["--rename", "q_proj=query"], "self_attn.query.weight")):
            with self.subTest(name):
                output, result = self.converted(folder_of(BASE), name, "--to", "hf", *options)
                self.assertIn("warning", result.err)
                self.assertIn(word, result.err)
                self.assertIn("not the model of its config.json", result.err)
                self.assertTrue((output / "model.safetensors").exists())

    def test_models_that_are_not_known_pass_through(self):
        config = json.loads((folder_of(BASE) / "config.json").read_text())
        changes = {"type": {"model_type": "mamba"}, "class": {"architectures": ["Qwen3ForTokenClassification"]}, "field": {"clip_qkv": 8.0}}
        for name, change in changes.items():
            with self.subTest(name):
                folder = self.folder / f"unknown-{name}"
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps({**config, **change}))
                save_file(weights() | {"score.weight": torch.zeros(2, 4)}, folder / "model.safetensors")
                output, result = self.converted(folder, f"passed-{name}", "--to", "hf", "--dtype", "bf16")
                self.assertIn("not compared with the model of config.json", result.err)
                self.assertIn("score.weight", load_file(output / "model.safetensors"))

    def test_in_4_bits(self):
        stored, _ = self.converted(folder_of(BASE), "stored", "--to", "hf", "--quantize", "nf4", "--double-quant")
        self.converted(stored, "copied", "--to", "hf")
        _, result = self.converted(stored, "less", "--to", "hf", "--exclude", "*layers.0.*")
        self.assertIn("model.layers.0.", result.err)

    def test_a_merge_that_changes_the_model_in_one_step(self):
        """The merge parts a tied head from its embedding, or adds tokens: to hf and then on, and at once."""
        base, data = folder_of("qwen2_tied"), self.documents("qwen2_tied")
        for name, options in (("head", ["--lora-targets", "q_proj,lm_head"]), ("saved", ["--modules-to-save", "lm_head"])):
            with self.subTest(name):
                self.tune(name, data, "--batch-size", 1, "--max-steps", 2, "--lr", "1e-2", "--lora-rank", 2, *options, "--no-shuffle", model=base)
                merge = ["--merge-adapter", self.run_directory(name) / "adapter"]
                merged, _ = self.converted(base, f"{name}-merged", "--to", "hf", *merge)
                self.assertFalse(json.loads((merged / "config.json").read_text())["tie_word_embeddings"])
                two, _ = self.converted(merged, f"{name}-two/m.gguf")
                one, _ = self.converted(base, f"{name}-one/m.gguf", *merge)
                self.assertEqual(one.read_bytes(), two.read_bytes())
                self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", base, one, *merge]).code, 0)
                at_once, _ = self.converted(base, f"{name}-megatron", "--to", "megatron", *merge)
                back, _ = self.converted(at_once, f"{name}-back", "--to", "hf")
                found, wanted = load_file(back / "model.safetensors"), load_file(merged / "model.safetensors")
                self.assertEqual(sorted(found), sorted(wanted))
                self.assertEqual([key for key in wanted if not torch.equal(found[key], wanted[key])], [])

    def test_a_merge_that_adds_tokens_in_one_step(self):
        base, adapter = folder_of("qwen2_untied"), self.folder / "more-tokens"
        adapter.mkdir()
        stored = load_file(base / "model.safetensors")
        rows = {f"base_model.model.{name}.weight": torch.nn.functional.pad(stored[name + ".weight"], (0, 0, 0, 3), value=0.5) for name in ("model.embed_tokens", "lm_head")}
        module = "base_model.model." + QUERY.removesuffix(".weight")
        parts = {f"{module}.lora_A.weight": torch.ones(2, stored[QUERY].shape[1]), f"{module}.lora_B.weight": torch.ones(stored[QUERY].shape[0], 2)}
        save_file(rows | parts, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["layers.0.self_attn.q_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "bias": "none"}))
        merged, _ = self.converted(base, "more-merged", "--to", "hf", "--merge-adapter", adapter)
        two, _ = self.converted(merged, "more-two/m.gguf")
        one, _ = self.converted(base, "more-one/m.gguf", "--merge-adapter", adapter)
        self.assertEqual(one.read_bytes(), two.read_bytes())
        megatron, _ = self.converted(base, "more-megatron", "--to", "megatron", "--merge-adapter", adapter)
        back, _ = self.converted(megatron, "more-back", "--to", "hf")
        self.assertEqual(fsdp_cli.run(PROGRAM, ["--verify", back, merged]).code, 0)

    def test_linear_scaling_to_megatron_and_back(self):
        for factor in (2.0, 2.5):
            with self.subTest(factor):
                folder = self.folder / f"linear-{factor}"
                folder.mkdir()
                config = json.loads((folder_of(BASE) / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": {"rope_type": "linear", "factor": factor}}))
                shutil.copyfile(folder_of(BASE) / "model.safetensors", folder / "model.safetensors")
                megatron, result = self.converted(folder, f"linear-{factor}-megatron", "--to", "megatron")
                self.assertNotIn("rope_scaling", result.err)
                back, _ = self.converted(megatron, f"linear-{factor}-back", "--to", "hf")
                self.assertEqual(json.loads((back / "config.json").read_text())["rope_scaling"], {"rope_type": "linear", "factor": factor})
                losses = [self.evaluate(at, "--precision", "float32", "--data", self.documents(BASE))["loss"] for at in (folder, back)]
                self.assertLess(abs(losses[1] - losses[0]), TOLERANCE)


if __name__ == "__main__":
    fsdp_cli.main()
