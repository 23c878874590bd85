"""Inputs that could block a program or exhaust memory: pipes without a writer, JSON of nothing but brackets."""

import os
import resource
import struct

import fsdp_cli


def at_most_one_gib():
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))


class Hostile(fsdp_cli.Case):
    def test_a_pipe_is_no_input(self):
        folder = self.folder / "pipes"
        folder.mkdir()
        for name in ("x.h5", "x.txt", "x.jsonl", "x.parquet", "x.pt", "x.safetensors", "x.json", "x.toml"):
            os.mkfifo(folder / name)
        model = folder / "model"
        model.mkdir()
        os.mkfifo(model / "config.json")
        self.train("run", "--max-steps", 1)
        checkpoint = self.checkpoints("run") / "latest"
        train = ["--out-dir", self.runs, "--run-name", "bad", *fsdp_cli.COMMON, *fsdp_cli.TINY_MODEL]
        cases = [("fsdp-finetune", ["--train-data", folder / name, *train]) for name in ("x.h5", "x.txt", "x.jsonl", "x.parquet")]
        cases += [("fsdp-finetune", ["--train-data", self.train_data, "--restart-checkpoint-file", folder / name, *train])
                  for name in ("x.pt", "x.safetensors")]
        cases += [("fsdp-finetune", ["--train-data", self.train_data, "--model", model, "--out-dir", self.runs, *fsdp_cli.COMMON]),
                  ("fsdp-finetune", ["--config", folder / "x.toml", "--train-data", self.train_data, *train]),
                  ("fsdp-eval", [folder / "x.pt", "--data", self.val_data]), ("fsdp-eval", [checkpoint, "--data", folder / "x.h5"]),
                  ("fsdp-eval", [checkpoint, "--data", folder / "x.txt"]), ("fsdp-eval", [model, "--data", self.val_data]),
                  ("fsdp-ckpt-convert", [folder / "x.safetensors", self.folder / "out.pt"]), ("fsdp-ckpt-convert", ["--inspect", folder / "x.json"]),
                  ("fsdp-ckpt-convert", [checkpoint, self.folder / "out", "--to", "hf", "--model-config", folder / "x.json"]),
                  ("fsdp-download", ["tokens", "--input", folder / "x.txt", "--tokenizer", "gpt2", "--output", self.folder / "out.h5"])]
        for program, arguments in cases:
            with self.subTest(f"{program} {' '.join(map(str, arguments))}"):
                result = fsdp_cli.run(program, arguments, limit_seconds=60)
                self.assert_refused(result, 2 if "--config" in arguments else 4, "is a pipe", folder)

    def test_nested_headers(self):
        """60 MB of brackets took 4.4 GB of memory before they were refused."""
        header = b'{"a":' + b"[" * 60_000_000
        file = self.folder / "deep.safetensors"
        file.write_bytes(struct.pack("<Q", len(header)) + header)
        self.assert_refused(fsdp_cli.run("fsdp-ckpt-convert", ["--inspect", file], before=at_most_one_gib), 4, file, "nested deeper")
        many = b'{"a":[' + b"[],{}," * 10_000_000 + b"0]}"
        file.write_bytes(struct.pack("<Q", len(many)) + many)
        self.assert_refused(fsdp_cli.run("fsdp-ckpt-convert", ["--inspect", file], before=at_most_one_gib), 4, file, "holds more than")
        model = self.folder / "deep"
        model.mkdir()
        for name in ("config.json", "model.safetensors.index.json"):
            (model / name).write_bytes(b'{"weight_map":' + b"[" * 500_000)
            result = fsdp_cli.run("fsdp-eval" if name == "config.json" else "fsdp-ckpt-convert",
                                  [model, "--data", self.val_data] if name == "config.json" else ["--inspect", model])
            self.assert_refused(result, 4, name, "nested deeper")


if __name__ == "__main__":
    fsdp_cli.main()
