"""Partial training: --freeze, --train-only and --child-tuning, other choices on restarts, memory. Restarts: tests/unit/apps/resume_test.cpp."""

import re
import shlex
import signal
import time

import fsdp_cli
import memprobe_cli

LOWER = ["--freeze", "transformer.wte,transformer.wpe,transformer.h.0"]


class Methods(fsdp_cli.Case):
    def tensors(self, run):
        """Returns the tensors of the run's newest checkpoint by name."""
        from safetensors.numpy import load_file
        file = self.folder / f"{run}.safetensors"
        result = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints(run) / "latest", file, "--model-only", "--overwrite"])
        self.assertEqual(result.code, 0, str(result))
        return load_file(file)

    def test_what_is_frozen_stays_and_can_be_thawed(self):
        report = self.train("stay", "--max-steps", 1, "--json", *LOWER, ranks=2).json()
        first = self.tensors("stay")
        self.train("stay", "--max-steps", 3, "--restart", "latest", ranks=2)
        later = self.tensors("stay")
        frozen = {n for n in first if n.startswith(("transformer.w", "transformer.h.0.", "lm_head"))}
        self.assertEqual({n for n in first if (first[n] == later[n]).all()}, frozen)
        trained = sum(first[n].size for n in first if n not in frozen)
        self.assertEqual(report["trained_parameters"], trained)
        state = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("stay") / "latest", "--inspect", "--json"]).json()["tensors"]
        with_state = {t["name"].removeprefix("optim.state.").removesuffix(".exp_avg") for t in state if t["name"].endswith("exp_avg")}
        self.assertEqual(with_state, set(first) - frozen)
        result = self.train("stay", "--max-steps", 5, "--restart", "latest", "--freeze", "", ranks=2)
        self.assertIn("have no state (they were frozen): theirs starts at zero", result.err)
        thawed = self.tensors("stay")
        self.assertFalse(any((thawed[n] == later[n]).all() for n in later))

    def test_in_bf16_a_frozen_weight_is_saved_as_it_is_used(self):
        self.train("narrow", "--max-steps", 2, "--precision", "bf16", *LOWER, ranks=2)
        found = fsdp_cli.run("fsdp-ckpt-convert", [self.checkpoints("narrow") / "latest", "--inspect", "--json"]).json()["tensors"]
        types = {t["name"]: t["dtype"] for t in found}
        self.assertEqual((types["model.transformer.h.0.mlp.c_fc.weight"], types["model.transformer.h.1.mlp.c_fc.weight"]), ("bfloat16", "float32"))
        whole = self.train("narrow-whole", "--max-steps", 4, "--precision", "bf16", *LOWER, ranks=2)
        self.train("narrow", "--max-steps", 4, "--restart", "latest", ranks=2)
        self.assertEqual(self.losses("narrow"), self.losses("narrow-whole"), str(whole))
        self.evaluate(self.checkpoints("narrow") / "latest", "--data", self.val_data)

    def test_a_pass_that_is_stopped_goes_on(self):
        data = fsdp_cli.write_tokens(self.folder / "many.h5", fsdp_cli.random_tokens(rows=800))
        options = ["--train-data", data, "--child-tuning", "d", "--fisher-samples", 0, "--max-steps", 3, "--batch-size", 1, "--log-every", 1]
        log = self.folder / "pass.log"
        arguments = self.train_arguments("pass", *options)
        process = fsdp_cli.start("fsdp-finetune", arguments, 2, log)
        self.addCleanup(fsdp_cli.end_group, process)
        end = time.monotonic() + 60
        while "fisher    batch 20 of 400" not in log.read_text():
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        command = re.search(r"step 0 of 3; to resume, on any number of ranks: (.*)", log.read_text())[1]
        words = shlex.split(command)
        self.assertTrue(words[0].endswith("mpiexec"), command)
        self.assertEqual(words[1:3], ["-n", "2"])
        self.assertTrue(words[3].endswith("/fsdp-finetune"), command)
        self.assertIn("--batch-size 1 ", command)
        result = self.train("pass", *options, "--restart", "latest", ranks=2)
        self.assertNotIn("fisher    batch 20 of 400", result.err)
        self.assertIn("fisher    batch 400 of 400", result.err)
        undisturbed = self.train("undisturbed", *options, ranks=2)
        self.assertEqual(self.losses("pass"), self.losses("undisturbed"))
        child = [next(line for line in r.err.splitlines() if line.startswith("child ")) for r in (result, undisturbed)]
        self.assertEqual(*(line.split("(")[0] for line in child))

    def test_another_choice_on_a_restart(self):
        self.train("change", "--max-steps", 2, "--child-tuning", "f", "--child-tuning-p", 0.4, "--freeze", "transformer.wpe")
        result = self.train("change", "--max-steps", 3, "--restart", "latest", "--child-tuning", "d", "--train-only", "transformer.h")
        self.assertIn("child     ", result.err)  # measured now, with the weights as they are
        result = self.train("change", "--max-steps", 4, "--restart", "latest", "--child-tuning", "off")
        self.assertNotIn("child     ", result.err)
        self.assertIn("only transformer.h", result.err)
        # Parameters outside of the earlier selection have no mask, so all masks are chosen again.
        self.train("grow", "--max-steps", 2, "--child-tuning", "d", "--freeze", "transformer.h.0")
        result = self.train("grow", "--max-steps", 3, "--restart", "latest", "--freeze", "")
        self.assertIn("fisher    batch", result.err)

    def test_memory_falls_as_predicted(self):
        reports = {}
        for name, options in {"all": [], "half": ["--freeze", "transformer.w*,transformer.h.[0-3]"], "f": ["--child-tuning", "f"], "d": ["--child-tuning", "d"]}.items():
            arguments = ["--num-layers", 8, "--num-heads", 4, "--embed-size", 128, "--vocab-size", 997, "--seq-len", 128, "--batch-size", 2,
                         "--device", "cpu", *options]
            reports[name] = memprobe_cli.report([*arguments, "--measure"])
            self.assertLess(abs(reports[name]["relative_error"]), 0.005, reports[name])
        whole, half, d = (reports[name]["breakdown"] for name in ("all", "half", "d"))
        self.assertLess(half["optimizer"], 0.5 * whole["optimizer"])
        self.assertLess(half["reduce_buffers"], 0.5 * whole["reduce_buffers"])
        self.assertLess(half["activations"], 0.6 * whole["activations"])
        self.assertEqual(half["parameters"], whole["parameters"])
        self.assertGreater(d["optimizer"], whole["optimizer"])


if __name__ == "__main__":
    fsdp_cli.main()
