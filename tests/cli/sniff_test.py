"""--sniff-every finds the rank that multiplies or sends wrong numbers now and then. Truth is planted: a preloaded library
flips a bit of what a rank sends, and a rank computes with other instructions than the others."""

import os
import re
import socket
import subprocess

import fsdp_cli

HOST = re.escape(socket.gethostname())


class Sniff(fsdp_cli.Case):
    def when_tested(self, text):
        return re.findall(r"sniffed +(before the first step|step \d+): (\d+) products, ", text)

    def test_right_nodes_train_on_with_the_same_losses(self):
        for number, (ranks, more) in enumerate((
                (1, ()), (2, ("--sharding", "full-shard")), (3, ("--sharding", "no-shard", "--precision", "bf16")),
                (4, ("--sharding", "hybrid-full-shard", "--shard-group-size", 2, "--collectives", "host-staged")))):
            with self.subTest(more=more):
                self.train(f"plain-{number}", "--max-steps", 4, *more, ranks=ranks)
                result = self.train(f"sniffed-{number}", "--max-steps", 4, *more, "--sniff-every", 2, ranks=ranks)
                self.assertEqual([when for when, _ in self.when_tested(result.err)], ["before the first step", "step 2", "step 4"])
                self.assertEqual("copies between neighbours at " in result.err, ranks > 1)
                self.assertEqual(self.losses(f"sniffed-{number}"), self.losses(f"plain-{number}"))

    def ended(self, name, ranks, env, *more):
        """Trains with a rank that is wrong. Returns what was written."""
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, "--max-steps", 100, "--save-every", 1, "--sniff-every", 3, *more),
                                 ranks, log, env)
        self.addCleanup(fsdp_cli.end_group, process)
        self.assertEqual(process.wait(120), 1, log.read_text())
        text = log.read_text()
        self.assertEqual(text.count("error:"), 1, text)
        return text

    def test_a_rank_that_sends_wrong_numbers(self):
        shim = os.environ.get("TEST_WRONG_LINKS")
        if not shim:
            self.skipTest("tests/support/wrong_links.c was not built")
        excluded = self.folder / "excluded"
        env = {"LD_PRELOAD": shim, "TEST_WRONG_RANK": "1"}
        for number, (ranks, only) in enumerate(((4, {}), (4, {"TEST_WRONG_TO": "2"}), (3, {"TEST_WRONG_TO": "2"}))):
            with self.subTest(ranks=ranks, only=only):
                text = self.ended(f"sender-{number}", ranks, {**env, **only}, "--exclude-file", excluded)
                self.assertRegex(text, rf"a copy between neighbours is wrong, element \d+ is .*, what was sent is .*: rank 1 \({HOST}\) took part each "
                                       r"time; no step was made")
                self.assertEqual(excluded.read_text(), socket.gethostname() + "\n")
                excluded.unlink()
                self.assertFalse(list(self.checkpoints(f"sender-{number}").glob("step-*")))
        # Wrong among four ranks alone: which of them it was cannot be told.
        text = self.ended("axis", 4, {**env, "TEST_WRONG_TO": "4"}, "--exclude-file", excluded)
        self.assertRegex(text, rf"an all-gather of .* along shard is wrong, element \d+ is .*: ranks 0-3 \({HOST}\) took part, and copies between two of them "
                               r"were right; no step was made")
        self.assertFalse(excluded.exists())

    def test_wrong_now_and_then(self):
        shim = os.environ.get("TEST_WRONG_LINKS")
        if not shim:
            self.skipTest("tests/support/wrong_links.c was not built")
        # Its two neighbours get one wrong copy of 18, before the first step or later.
        text = self.ended("flaky", 4, {"LD_PRELOAD": shim, "TEST_WRONG_RANK": "3", "TEST_WRONG_TO": "2", "TEST_WRONG_EVERY": "11"})
        self.assertRegex(text, rf"a copy between neighbours is wrong, .*: ranks? [\d, -]*3[\d, -]* \({HOST}\) took part(| each time); (no step was made|step \d+ is not saved)")

    def test_a_rank_that_computes_otherwise(self):
        older = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "DNNL_MAX_CPU_ISA": "SSE41"}
        self.train("usual", "--max-steps", 5)
        self.train("older", "--max-steps", 5, env=older)
        if self.losses("usual") == self.losses("older"):
            self.skipTest("this processor computes the same with older instructions")
        exports = " ".join(f"{name}={value}" for name, value in older.items())
        programs = fsdp_cli.wrap(self.folder / "programs", "fsdp-finetune", f'if [ {fsdp_cli.SHELL_RANK} = 2 ]; then export {exports}; fi')
        line = fsdp_cli.command("fsdp-finetune", self.train_arguments("otherwise", "--max-steps", 20, "--sniff-every", 5), 4, programs)
        result = subprocess.run(line, capture_output=True, text=True, env=fsdp_cli.environment(), check=False, timeout=90)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, rf"the product of \d+ x \d+ x \d+.* differs between ranks: rank 2 \({HOST}\) has not what the others have")


fsdp_cli.main()
