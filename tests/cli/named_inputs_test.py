"""Messages of all programs name the file, the key or the option that the user gave, and what to do; nothing is passed over
without a word."""

import json
import os
import shutil
import unittest

import fsdp_cli
import llama_cli
from convert_fixtures import PROGRAM, ConvertCase

numpy = llama_cli.numpy


class NamedInputs(llama_cli.WeightsCase, ConvertCase):
    def program(self, *arguments, code=0, **how):
        result = fsdp_cli.run(PROGRAM, arguments, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def refused(self, *arguments, words=(), code=2):
        self.assert_refused(self.program(*arguments, code=code), code, *words)

    def snapshot(self, name, **changes):
        return llama_cli.make_snapshot(self.folder / name, tokenizer=False, files=1, dtype="F32", **changes)

    def evaluated(self, *arguments, code=4, words=()):
        self.assert_refused(fsdp_cli.run("fsdp-eval", [*arguments, "--data", self.val_data, "--device", "cpu"]), code, *words)

    def test_names_that_are_nearly_right_are_answered_with_the_right_ones(self):
        runs, model = self.folder / "runs", self.snapshot("tiny-llama")
        for name in ("first", "second"):
            (runs / name).mkdir(parents=True)
            (runs / name / "metrics.jsonl").write_text("")
        self.evaluated(runs / "nosuch", words=["nosuch", "the runs first, second"])
        self.evaluated(runs / "secnd", words=["did you mean", runs / "second"])
        os.chdir(runs.parent)  # runs/nosuch has the form of a hub's name
        result = fsdp_cli.run("fsdp-eval", ["runs/nosuch", "--data", self.val_data])
        self.assert_refused(result, 4, "runs/nosuch", "first, second")
        self.assertNotIn("fsdp-download", result.err)
        for name in ("tiny-lama", "./tiny-lama"):
            self.assert_refused(self.train("near", "--model", name, code=4), 4, name, f"did you mean ./{model.name}?")
        config = self.folder / "options.json"
        config.write_text('{"batch-size": 2, "lr": 1e-3}\n')
        result = fsdp_cli.run("fsdp-eval", [model, "--config", config])
        self.assert_refused(result, 2, f"--config {config}: line 1", "JSON", "name=value")
        self.assert_refused(self.train("fp8", "--precision", "fp8", code=2), 2, "--precision fp8", "--compute-dtype fp8")
        result = fsdp_cli.run("fsdp-ckpt-convert", [model, self.folder / "out.gguf", "--to", "gguf", "--dtype", "q4_k_m"])
        self.assert_refused(result, 2, "q4_k_m", "q8_0", "bf16")

    def test_a_folder_above_a_checkpoint(self):
        above = self.folder / "training" / "output"
        llama_cli.make_snapshot(above / "weights", tokenizer=False, files=1, dtype="F32")
        for folder, below in ((above, "weights"), (above.parent, "output/weights")):
            result = fsdp_cli.run("fsdp-ckpt-convert", [folder, self.folder / "out", "--to", "hf"])
            self.assert_refused(result, 4, folder, "DeepSpeed", "below it", folder / below, "safetensors")

    def test_a_file_is_no_model_to_train(self):
        file = self.folder / "model.gguf"
        self.program(self.model, file)
        self.assert_refused(self.train("gguf", "--model", file, code=4), 4, "model.gguf", "GGUF", "--to hf")
        weights = self.snapshot("weights") / "model.safetensors"
        self.assert_refused(self.train("gguf", "--model", weights, code=4), 4, "model.safetensors", "folder")

    def test_restarts_that_contradict_their_checkpoint(self):
        self.train("full", "--model", self.model, "--max-steps", 1)
        again = ["--restart-checkpoint-file", "latest", "--max-steps", 2]
        result = self.train("full", *again, "--model", self.model, "--lora-rank", 2, code=4)
        self.assert_refused(result, 4, "step-00000001", "holds a whole model", "--to hf")
        other = self.snapshot("other", num_hidden_layers=2)
        self.assert_refused(self.train("full", *again, "--model", other, code=2), 2, f"--model {other}", "2 layers", "3 layers")
        self.train("full", *again, "--model", self.model)
        checkpoint = self.checkpoints("full") / "latest"
        self.assert_refused(self.train("new", "--model", checkpoint, code=4), 4, "--restart-checkpoint-file", "--to hf")

    def test_pointers_of_git_lfs(self):
        """A clone without Git LFS has them in place of large files; as texts they were encoded."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"
        for name in ("data.txt", "data.csv", "data.jsonl", "data.parquet"):
            (self.folder / name).write_text(pointer)
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", self.folder / name, "--tokenizer", "gpt2", "--output", self.folder / "out.h5"])
            self.assert_refused(result, 4, name, "pointer of Git LFS", "git lfs pull")
        (self.folder / "data.h5").write_text(pointer)
        self.assert_refused(self.train("lfs", "--train-data", self.folder / "data.h5", code=4), 4, "data.h5", "pointer of Git LFS")
        for name in ("model.safetensors", "config.json"):
            folder = self.snapshot(f"lfs-{name}")
            (folder / name).write_text(pointer)
            self.evaluated(folder, words=[name, "pointer of Git LFS"])

    def test_a_number_that_a_type_cannot_hold_is_in_a_file(self):
        file = self.folder / "large.safetensors"
        llama_cli.save_file({"w": numpy.full((2,), 70000, numpy.float32)}, file, "F32")
        result = self.program(file, self.folder / "large.pt", "--dtype", "fp16", code=4)
        self.assertIn(f"{file}: 'w' has an element of 70000", result.err)

    def test_dora_of_an_embedding(self):
        adapter = self.folder / "dora"
        adapter.mkdir()
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["embed_tokens"], "use_dora": True, "task_type": "CAUSAL_LM"}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        place, rows, width = "base_model.model.model.embed_tokens.lora_", llama_cli.CONFIG["vocab_size"], llama_cli.CONFIG["hidden_size"]
        shapes = {"embedding_A": (2, rows), "embedding_B": (width, 2), "magnitude_vector": (width,)}  # as peft 0.21 writes them
        llama_cli.save_file({place + name: numpy.ones(shape, numpy.float32) for name, shape in shapes.items()}, adapter / "adapter_model.safetensors", "F32")
        self.refused(self.model, self.folder / "merged", "--to", "hf", "--merge-adapter", adapter, code=4, words=[adapter, "use_dora", "embed_tokens"])
        self.evaluated(self.model, "--adapter", adapter, words=[adapter, "use_dora", "embed_tokens"])
        self.assert_refused(self.train("dora", "--model", self.model, "--adapter", adapter, code=4), 4, adapter, "use_dora", "embed_tokens")

    def test_4_bits_to_megatron(self):
        quantized = self.convert(self.model, "nf4", "--to", "hf", "--quantize", "nf4")
        self.refused(quantized, self.folder / "megatron", "--to", "megatron", words=["4 bits", "--dequantize"])
        self.convert(quantized, "megatron", "--to", "megatron", "--dequantize")

    def test_config_json(self):
        zero = self.snapshot("zero")
        config = json.loads((zero / "config.json").read_text())
        (zero / "config.json").write_text(json.dumps({**config, "num_attention_heads": 0}))
        self.evaluated(zero, words=["zero/config.json", "num_attention_heads is 0"])
        for name, text, word in (("empty", "", "byte 1"), ("comma", '{"model_type": "llama",, }', "byte 24"), ("list", "[]", "object")):
            bad = self.snapshot(name)
            (bad / "config.json").write_text(text)
            for more in (["--to", "hf"], ["--to", "hf", "--quantize", "nf4"], ["--to", "gguf"]):
                self.refused(bad, self.folder / "out", *more, code=4, words=[f"{name}/config.json", word])

    def test_what_accelerate_kept_is_named(self):
        saved = shutil.copytree(fsdp_cli.folder("FSDP_FIXTURES") / "trainers" / "accel_fsdp2_ws2_full" / "ckpt", self.folder / "accelerate")
        for name in ("scaler.pt", "sampler.bin", "sampler_1.bin", "dl_state_dict.bin"):
            (saved / name).write_bytes(b"unread")
        told = self.program(saved, self.folder / "accelerate.pt").err
        self.assertIn("not read:", told)
        for name in ("scaler.pt", "sampler.bin", "sampler_1.bin", "dl_state_dict.bin"):
            self.assertIn(name, told)

    @unittest.skipUnless(os.geteuid() == 0, "only root starts a program as another user")
    def test_folders_without_permission(self):
        os.chmod(self.folder, 0o755)
        shut = self.snapshot("shut")
        inside = shutil.copytree(shut, shut / "inside")
        os.chmod(shut, 0)
        for folder in (shut, inside):
            within = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups"]
            result = fsdp_cli.run("fsdp-eval", [folder, "--data", self.val_data, "--device", "cpu"], within=within)
            self.assert_refused(result, 1, folder.name, "Permission denied")
        os.chmod(shut, 0o755)

    def test_patterns_that_match_nothing(self):
        for option in ("--exclude", "--include"):
            self.refused(self.model, self.folder / "x.pt", "--include", "*", option, "lm_haed*", words=["'lm_haed*' matches no name", f"({option})"])
        self.refused(self.model, self.folder / "x.pt", "--include", "a", "b", words=["3 paths were given", "give each pattern an option of its own"])
        self.assertFalse((self.folder / "x.pt").exists())
        # A name may be on one side of a comparison alone.
        part = self.convert(self.model, "part.safetensors", "--exclude", "lm_head*")
        self.program("--verify", self.model, part, "--exclude", "lm_head*")
        self.program("--verify", part, self.model, "--exclude", "lm_head*")

    def test_a_suffix_in_capitals(self):
        for name, kind in (("x.PT", "torch"), ("x.SafeTensors", "safetensors"), ("x.GGUF", "gguf")):
            report = self.program(self.model, self.folder / name, "--dry-run", "--json").json()
            self.assertEqual(report["output_format"], kind)

    def test_metas_names_take_the_heads_from_the_config_beside(self):
        alone = self.convert(self.model, "told.pt", "--map", "hf-to-meta", "--model-config", self.model)
        beside = self.convert(self.model, "beside.pt", "--map", "hf-to-meta")
        self.program("--verify", alone, beside)


if __name__ == "__main__":
    fsdp_cli.main()
