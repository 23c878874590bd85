"""The README's examples that need preparation, and the share of peak speed in the log."""

import os
import pathlib
import re
import subprocess
import sys

import fsdp_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Examples(fsdp_cli.Case):
    def test_the_tiny_llama_of_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        command = re.search(r"^    \$ build/bin/mpiexec -n 2 build/bin/fsdp-finetune (--model tiny-llama .*\\\n.*)$", readme, re.M)[1]
        words = command.replace("\\\n", " ").split()
        self.assertIn("    $ scripts/tiny_llama tiny-llama ", readme)
        made = subprocess.run([ROOT / "scripts/tiny_llama", "tiny-llama"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((made.returncode, made.stdout), (0, "tiny-llama\n"), made.stderr)
        again = subprocess.run([ROOT / "scripts/tiny_llama", "tiny-llama"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 2)
        for name, lacks in (("tiny_llama", "tokenizer.model"), ("tiny_qwen", "scripts/tiny_llama")):
            alone = self.folder / "copied" / "bin" / name
            alone.parent.mkdir(parents=True, exist_ok=True)
            alone.write_text((ROOT / "scripts" / name).read_text())
            lost = subprocess.run([sys.executable, alone, "lost"], cwd=self.folder, capture_output=True, text=True, check=False)
            self.assertEqual((lost.returncode, lacks in lost.stderr, "Traceback" in lost.stderr), (1, True, False), lost.stderr)
            self.assertFalse((self.folder / "lost").exists())
            place = "tiny-llama/config.json/below"  # cannot be created
            lost = subprocess.run([ROOT / "scripts" / name, place], cwd=self.folder, capture_output=True, text=True, check=False)
            self.assertEqual((lost.returncode, place in lost.stderr, "Traceback" in lost.stderr), (1, True, False), lost.stderr)
        os.symlink(ROOT / "data", self.folder / "data")
        result = fsdp_cli.run("fsdp-finetune", [*words, *fsdp_cli.COMMON], ranks=2, cwd=self.folder)
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("llama 4 x 128, 1.0 M parameters", result.err)
        losses = fsdp_cli.losses(self.folder / "runs" / "tiny-llama")
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertTrue((self.folder / "hf" / "tokenizer.model").exists())

    def test_the_recipe_for_conversations(self):
        """Runs the recipe's commands unchanged in a shell; their output has the recipe's figures."""
        page = (ROOT / "docs/recipe-conversations.md").read_text().split("## On four GPUs")[0]
        commands = re.findall(r"^    \$ (.*?(?:<<'END'\n(?:    .*\n)*?    END)?)$", page, re.M)
        self.assertEqual([c.split()[0] for c in commands], ["scripts/tiny_qwen", "cat", "fsdp-download", "mpiexec", "mpiexec"])
        os.symlink(ROOT / "scripts", self.folder / "scripts")
        path = f"{fsdp_cli.folder('FSDP_BIN')}:{pathlib.Path(os.environ['FSDP_MPIEXEC']).parent}:{os.environ['PATH']}"
        said = []
        for command in commands:
            done = subprocess.run(["bash", "-c", command.replace("\n    ", "\n")], cwd=self.folder, env=fsdp_cli.environment({"PATH": path}),
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
            said.append(done.stderr + done.stdout)
        shown = re.search(r"^    byte-level BPE of (?:.*\n)*?(?=\n)", page, re.M)[0]
        for line in shown.splitlines():
            self.assertIn(line.strip().split(" written in")[0], said[2])
        losses = fsdp_cli.losses(self.folder / "runs" / "chats")
        self.assertLess(losses[-1], 0.1)  # learned by heart, from ln 1259 = 7.1
        self.assertIn("40 tokens", said[4])
        self.assertEqual(sorted(p.name for p in (self.folder / "runs/chats/hf").iterdir() if p.name.startswith("tokenizer")), ["tokenizer.json", "tokenizer_config.json"])

    def test_no_step_passes_the_peak(self):
        measured = {"FSDP_CPU_FLOPS": ""}
        result = self.train("mfu", "--max-steps", 6, "--log-every", 1, "--embed-size", 256, "--num-heads", 4, "--batch-size", 8, ranks=2,
                            env=measured)
        shares = [r["mfu"] for r in fsdp_cli.steps(self.run_directory("mfu"))]
        self.assertEqual(len(shares), 6)
        self.assertTrue(all(0 < share <= 1 for share in shares), shares)
        self.assertTrue(all(int(percent) <= 100 for percent in re.findall(r"(\d+) % of peak", result.err)), result.err)


if __name__ == "__main__":
    fsdp_cli.main()
