"""Folders of a model: which of their files hold it, and that two models, or a part of one, are refused by name.

The losses are those of transformers in tests/fixtures/families."""

import json
import shutil

import families_cli
import fsdp_cli
from families_cli import TOLERANCE, folder_of, truth

with fsdp_cli.needed():
    import torch
    from safetensors.torch import load_file, save_file

SHARDS = ["-00001-of-00002", "-00002-of-00002"]


def write_index(folder, name, suffix, parts):
    (folder / f"{name}{suffix}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {key: f"{name}{shard}{suffix}" for shard, part in zip(SHARDS, parts) for key in part}}))


class Folders(families_cli.Case):
    def empty_copy(self, model, name):
        """Returns a folder with config.json alone, and the weights."""
        folder = self.folder / name
        folder.mkdir()
        shutil.copyfile(folder_of(model) / "config.json", folder / "config.json")
        return folder, load_file(folder_of(model) / "model.safetensors")

    def halves(self, weights):
        keys = list(weights)
        return [{key: weights[key] for key in keys[:len(keys) // 2]}, {key: weights[key] for key in keys[len(keys) // 2:]}]

    def torch_folder(self, model, name, sharded, legacy=False):
        folder, weights = self.empty_copy(model, name)
        parts = self.halves(weights) if sharded else [weights]
        for part, shard in zip(parts, SHARDS if sharded else [""]):
            torch.save(part, folder / f"pytorch_model{shard}.bin", _use_new_zipfile_serialization=not legacy)
        if sharded:
            write_index(folder, "pytorch_model", ".bin", parts)
        return folder

    def assert_loss(self, model, folder, **how):
        report = self.evaluate(folder, "--precision", "float32", "--data", self.documents(model), "--batch-size", 2, **how)
        self.assertLess(abs(report["loss"] - truth(model)["loss"]), TOLERANCE)

    def test_pytorch_model_bin(self):
        """As transformers wrote until 4.35: whole and in shards, read by all programs."""
        for number, (model, sharded) in enumerate((("qwen3", False), ("qwen3", True), ("gpt2", False), ("gpt2", True))):
            with self.subTest(f"{model} sharded={sharded}"):
                name = f"{model}-{sharded}"
                folder = self.torch_folder(model, name, sharded, legacy=number % 2 == 1)
                self.assert_loss(model, folder, ranks=1 + number % 2)
                self.convert(folder, self.folder / f"{name}-hf", "--to", "hf")
                self.assert_loss(model, self.folder / f"{name}-hf")
                found, wanted = (load_file(at / "model.safetensors") for at in (self.folder / f"{name}-hf", folder_of(model)))
                self.assertEqual([key for key in wanted if not torch.equal(found[key], wanted[key])], [])
                self.tune(name, self.documents(model), "--lr", 0, "--max-steps", 1, "--no-shuffle", "--no-save", "--weight-decay", 0, "--batch-size", 2,
                          *(["--dropout", 0] if model == "gpt2" else []), model=folder)
                self.assertLess(abs(self.losses(name)[0] - truth(model)["loss"]), TOLERANCE)
                report = fsdp_cli.run("fsdp-ckpt-convert", [folder, "--inspect", "--json"]).json()
                self.assertEqual(len(report["files"]), 2 if sharded else 1)
                self.assertEqual(fsdp_cli.run("fsdp-ckpt-convert", ["--check", folder]).code, 0)

    def test_shards_of_pytorch_model_bin(self):
        folder = self.torch_folder("qwen3", "shards", True)
        self.convert(folder / "pytorch_model.bin.index.json", self.folder / "by-index.safetensors")
        self.convert(folder / "pytorch_model-00001-of-00002.bin", self.folder / "half.safetensors")
        self.assertLess(len(load_file(self.folder / "half.safetensors")), len(load_file(self.folder / "by-index.safetensors")))
        index = folder / "pytorch_model.bin.index.json"
        said = index.read_text()
        index.unlink()
        self.assert_loss("qwen3", folder)  # all of them are there
        index.write_text(said.replace("model.norm.weight", "model.norm.scale"))
        self.assert_refused(fsdp_cli.run("fsdp-ckpt-convert", [folder, self.folder / "x.pt"]), 4, "model.norm.scale", "should be in")
        index.write_text(said)
        (folder / "pytorch_model-00002-of-00002.bin").unlink()
        self.assert_refused(fsdp_cli.run("fsdp-eval", [folder, "--data", self.documents("qwen3")]), 4, "pytorch_model-00002-of-00002.bin", "is missing")

    def test_a_part_of_a_model_is_refused(self):
        for name, suffix, write in (("model", ".safetensors", save_file), ("pytorch_model", ".bin", torch.save)):
            with self.subTest(name):
                folder, weights = self.empty_copy("qwen3", f"part{suffix}")
                parts = self.halves(weights)
                write(parts[1], folder / f"{name}{SHARDS[1]}{suffix}")
                missing = f"{name}{SHARDS[0]}{suffix}"
                for program, arguments in (("fsdp-ckpt-convert", [folder, self.folder / "x", "--to", "hf"]), ("fsdp-ckpt-convert", ["--check", folder]),
                                           ("fsdp-eval", [folder, "--data", self.documents("qwen3")])):
                    self.assert_refused(fsdp_cli.run(program, arguments), 4, missing, "is missing")
                write(parts[0], folder / missing)
                self.assert_loss("qwen3", folder)

    def test_two_models_are_refused(self):
        """transformers takes the whole file, others the index."""
        for name, suffix, write in (("model", ".safetensors", save_file), ("pytorch_model", ".bin", torch.save)):
            with self.subTest(name):
                folder, weights = self.empty_copy("qwen3", f"two{suffix}")
                parts = self.halves(weights)
                for part, shard in zip(parts, SHARDS):
                    write(part, folder / f"{name}{shard}{suffix}")
                write({key: 1.5 * tensor for key, tensor in weights.items()}, folder / f"{name}{suffix}")
                write_index(folder, name, suffix, parts)
                for program, arguments in (("fsdp-ckpt-convert", [folder, self.folder / "x", "--to", "hf"]), ("fsdp-eval", [folder, "--data", self.documents("qwen3")]),
                                           ("fsdp-finetune", ["--model", folder, "--train-data", self.documents("qwen3"), "--out-dir", self.runs, "--run-name", "two"])):
                    self.assert_refused(fsdp_cli.run(program, arguments), 4, "two models", f"{name}{suffix}", f"{name}{suffix}.index.json", "remove")
                self.convert(folder / f"{name}{suffix}.index.json", self.folder / f"meant{suffix}", "--to", "hf")
                self.assert_loss("qwen3", self.folder / f"meant{suffix}")
                (folder / f"{name}{suffix}").unlink()
                self.assert_loss("qwen3", folder)
                # An index of the whole file is no second model.
                write(weights, folder / f"{name}{suffix}")
                write_index(folder, name, suffix, [weights])
                index = folder / f"{name}{suffix}.index.json"
                index.write_text(index.read_text().replace(SHARDS[0], ""))
                self.assert_loss("qwen3", folder)

    def test_shards_that_contradict_their_index(self):
        """transformers takes a tensor that two shards hold from the last of them, whatever the index says."""
        for name, suffix, write in (("model", ".safetensors", save_file), ("pytorch_model", ".bin", torch.save)):
            with self.subTest(name):
                folder, weights = self.empty_copy("qwen3", f"twice{suffix}")
                parts = self.halves(weights)
                write_index(folder, name, suffix, parts)
                twice = next(iter(parts[0]))
                last = folder / f"{name}{SHARDS[1]}{suffix}"
                write(parts[0], folder / f"{name}{SHARDS[0]}{suffix}")
                write({**parts[1], twice: 2 * weights[twice]}, last)
                for program, arguments in (("fsdp-ckpt-convert", [folder, self.folder / "x", "--to", "hf"]), ("fsdp-eval", [folder, "--data", self.documents("qwen3")])):
                    self.assert_refused(fsdp_cli.run(program, arguments), 4, last.name, twice, f"{name}{SHARDS[0]}{suffix}", "index")
                write({**parts[1], "model.extra": torch.ones(1)}, last)
                self.assert_loss("qwen3", folder)
                result = fsdp_cli.run("fsdp-ckpt-convert", [folder, self.folder / f"all{suffix}"])
                self.assertEqual(result.code, 0, str(result))
                self.assertIn(f"{last.name}: a tensor that the index does not name is left out (model.extra)", result.err)

    def test_safetensors_win_over_pytorch_model_bin(self):
        folder, weights = self.empty_copy("qwen3", "both")
        save_file(weights, folder / "model.safetensors")
        torch.save({key: 1.5 * tensor for key, tensor in weights.items()}, folder / "pytorch_model.bin")
        self.assert_loss("qwen3", folder)


if __name__ == "__main__":
    fsdp_cli.main()
