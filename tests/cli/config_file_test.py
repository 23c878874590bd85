"""Config files in runs: what --print-config writes, --config reads back. Their syntax: tests/unit/apps/common."""

import json

import fsdp_cli
import llama_cli


def print_config(program, *arguments):
    result = fsdp_cli.run(program, [*arguments, "--print-config"])
    assert result.code == 0 and not result.err, str(result)
    return result.out


def given(text):
    """Returns the names of the options that are set."""
    return [line.split("=")[0] for line in text.splitlines() if line and not line.startswith("#")]


class ConfigFile(llama_cli.Case):
    def test_fine_tuning_keeps_its_defaults(self):
        arguments = ["--model", self.model, "--train-data", self.games, "--documents", "--max-steps", 2, "--batch-size", 2, "--max-seq-length", 64,
                     "--out-dir", self.runs, *fsdp_cli.COMMON]
        file = self.folder / "llama.ini"
        file.write_text(print_config("fsdp-finetune", *arguments, "--run-name", "by-file"))
        for name, how in (("direct", [*arguments, "--run-name", "direct"]), ("by-file", ["--config", file])):
            result = fsdp_cli.run("fsdp-finetune", how)
            self.assertEqual(result.code, 0, str(result))
        saved = [json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())["options"] for name in ("direct", "by-file")]
        self.assertEqual(saved[1], saved[0])
        self.assertEqual(saved[1]["lr"], "1e-5")
        self.assertEqual(self.losses("by-file"), self.losses("direct"))

    def test_a_restart_keeps_what_the_checkpoint_says(self):
        self.train("restart", "--max-steps", 2, "--lr", "0.02", "--betas", "0.8", "0.9")
        file = self.folder / "restart.ini"
        file.write_text(print_config("fsdp-finetune", "--out-dir", self.runs, "--run-name", "restart", *fsdp_cli.COMMON, "--restart", "latest",
                                     "--max-steps", 3))
        result = fsdp_cli.run("fsdp-finetune", ["--config", file])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual([r["lr"] for r in fsdp_cli.steps(self.run_directory("restart"))], [0.02] * 3)

    def test_a_plan_is_for_the_fine_tune_alone(self):
        plan = self.folder / "plan.ini"
        arguments = ["--ranks", 2, "--memory", "8GiB", "--search", "--max-batch", 8, *fsdp_cli.TINY_MODEL, "--plan", plan, "--json", *fsdp_cli.COMMON]
        file = self.folder / "memprobe.ini"
        file.write_text(print_config("fsdp-memprobe", *arguments))
        for how in (arguments, ["--config", file]):
            plan.unlink(missing_ok=True)
            result = fsdp_cli.run("fsdp-memprobe", how)
            self.assertEqual(result.code, 0, str(result))
            self.assertEqual(set(given(plan.read_text())), {"num-layers", "num-heads", "embed-size", "vocab-size", "seq-len", "batch-size",
                                                            "sharding", "precision", "activation-checkpointing", "device"})
            text = print_config("fsdp-finetune", "--config", plan)
            again = self.folder / "again.ini"
            again.write_text(text)
            self.assertEqual(print_config("fsdp-finetune", "--config", again), text)


if __name__ == "__main__":
    fsdp_cli.main()
