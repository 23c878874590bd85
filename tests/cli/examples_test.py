"""The README's examples that need something made first, and the share of the peak that the log shows."""

import os
import pathlib
import re
import subprocess

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
        os.symlink(ROOT / "data", self.folder / "data")
        result = fsdp_cli.run("fsdp-finetune", [*words, *fsdp_cli.COMMON], ranks=2, cwd=self.folder)
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("llama 4 x 128, 1.0 M parameters", result.err)
        losses = fsdp_cli.losses(self.folder / "runs" / "tiny-llama")
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertTrue((self.folder / "hf" / "tokenizer.model").exists())

    def test_no_step_passes_the_peak(self):
        result = self.train("mfu", "--max-steps", 6, "--log-every", 1, "--embed-size", 256, "--num-heads", 4, "--batch-size", 8, ranks=2)
        shares = [r["mfu"] for r in fsdp_cli.steps(self.run_directory("mfu"))]
        self.assertEqual(len(shares), 6)
        self.assertTrue(all(0 < share <= 1 for share in shares), shares)
        self.assertTrue(all(int(percent) <= 100 for percent in re.findall(r"(\d+) % of peak", result.err)), result.err)


if __name__ == "__main__":
    fsdp_cli.main()
