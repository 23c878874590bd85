"""Output to stdout either arrives completely, or the program reports the failure and ends with 1."""

import os
import subprocess

import fsdp_cli

PROGRAMS = ("fsdp-finetune", "fsdp-memprobe", "fsdp-eval", "fsdp-ckpt-convert", "fsdp-download", "fsdp-bf16check")


class Stdout(fsdp_cli.Case):
    def run_into(self, target, program, *arguments):
        with open(target, "w", encoding="utf-8") as out:
            line = fsdp_cli.command(program, arguments, 0)
            return subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, env=fsdp_cli.environment(), check=False)

    def check(self, program, *arguments):
        good = self.run_into(os.devnull, program, *arguments)
        self.assertEqual(good.returncode, 0, f"{program} {arguments} {good.stderr}")
        full = self.run_into("/dev/full", program, *arguments)
        self.assertEqual(full.returncode, 1, f"{program} {arguments} {full.stderr}")
        self.assertIn("stdout", full.stderr)
        self.assertEqual(full.stderr.count("error:"), 1, full.stderr)
        return full.stderr

    def test_help_and_version(self):
        for program in PROGRAMS:
            self.assertIn("No space left", self.check(program, "--help"))
            self.assertIn("No space left", self.check(program, "--version"))
        self.check("fsdp-download", "tokens", "--help")

    def test_print_config(self):
        self.check("fsdp-finetune", "--print-config")
        self.check("fsdp-memprobe", "--print-config")

    def test_results(self):
        self.train("a", "--max-steps", 1)
        checkpoint = self.checkpoints("a") / "latest"
        self.check("fsdp-finetune", *self.train_arguments("a", "--dry-run", "--json"))
        self.check("fsdp-eval", checkpoint, "--data", self.val_data, "--json", *fsdp_cli.COMMON)
        self.check("fsdp-eval", checkpoint, "--data", self.val_data, *fsdp_cli.COMMON)
        self.check("fsdp-ckpt-convert", "--inspect", checkpoint)
        self.check("fsdp-ckpt-convert", "--inspect", checkpoint, "--json")
        self.check("fsdp-memprobe", *fsdp_cli.TINY_MODEL, *fsdp_cli.COMMON)
        self.check("fsdp-memprobe", *fsdp_cli.TINY_MODEL, *fsdp_cli.COMMON, "--json")
        (self.folder / "text.txt").write_text("some words to be encoded, " * 50)
        tokens = ["tokens", "--input", self.folder / "text.txt", "--tokenizer", "gpt2", "--seq-len", 8, "--output", self.folder / "text.h5"]
        self.check("fsdp-download", *tokens)
        self.check("fsdp-download", *tokens, "--json")


if __name__ == "__main__":
    fsdp_cli.main()
