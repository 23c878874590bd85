"""Options of the programs, as processes see them. What they mean is asked in one process: tests/unit/apps/common."""

import platform
import re
import signal
import subprocess
import time

import fsdp_cli

TOKENS = ["tokens", "--input", "a", "--tokenizer", "gpt2", "--output", "b"]


class Options(fsdp_cli.Case):
    def test_underscores_train(self):
        self.train("underscores", "--max_steps", "2", "--batch_size", "2", "--val_data", self.val_data, "--meta_init",
                   "--activation_checkpoints", "--cpu_offload", "--environment", "local", "--ffn_hidden_size", "40")
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("underscores"))), 2)
        self.assertEqual(self.evaluate(self.checkpoints("underscores") / "latest", "--data", self.val_data)["model"]["n_hidden"], 40)

    def test_help_and_version_are_printed_once(self):
        for program, option in (("fsdp-finetune", "--help"), ("fsdp-eval", "--version")):
            alone = fsdp_cli.run(program, [option])
            self.assertEqual((alone.code, alone.err), (0, ""))
            self.assertIn(program, alone.out)
            self.assertEqual(fsdp_cli.run(program, [option], ranks=2).out, alone.out)

    def test_help_is_a_page_and_help_all_has_every_option(self):
        for program in ("fsdp-finetune", "fsdp-eval", "fsdp-memprobe", "fsdp-ckpt-convert"):
            with self.subTest(program):
                page = fsdp_cli.run(program, ["--help"])
                self.assertEqual((page.code, page.err), (0, ""))
                lines = page.out.splitlines()
                self.assertLessEqual(len(lines), 25)
                self.assertLess(max(map(len, lines)), 125)
                count = re.fullmatch(rf"All (\d+) options and their defaults: {program} --help-all", lines[-1])[1]
                every = fsdp_cli.run(program, ["--help-all"]).out
                options = set(re.findall(r"^  (-[\w-]+)", every, re.M))
                # The positional arguments have no dash.
                self.assertLessEqual(int(count) - len(options), 1)
                for option in re.findall(r"^  (--[\w-]+)", page.out, re.M):
                    self.assertRegex(every, rf"(?m)(^  |,){option}\b")
        self.assertGreater(len(fsdp_cli.run("fsdp-download", ["--help"]).out), 1000)

    def test_a_program_that_starts_loaded_ends_as_itself(self):
        """Compares programs that run() starts by loaded_programs.cpp with the programs themselves."""
        programs = fsdp_cli.loaded("fsdp-finetune", None)
        if programs is None:
            self.skipTest("programs start themselves here")
        for program, words in (("fsdp-eval", ["--version"]), ("fsdp-finetune", ["--steps", "4"]), ("fsdp-eval", ["none.pt", "--data", "x"])):
            ends = [fsdp_cli.run(program, words, cwd=self.folder, within=within) for within in ([], ["env"])]
            self.assertEqual(*((end.code, end.out, end.err) for end in ends))
        for signal_sent, code in ((signal.SIGTERM, fsdp_cli.STOPPED_EARLY), (signal.SIGKILL, -signal.SIGKILL)):
            words = self.train_arguments(f"signal-{signal_sent}", "--max-steps", 10 ** 6)
            process = subprocess.Popen(fsdp_cli.command("fsdp-finetune", words, 0, programs), stderr=subprocess.DEVNULL,
                                       env=fsdp_cli.environment({"FSDP_LOADED_PROGRAMS": fsdp_cli.loaded_programs()}))
            metrics = self.run_directory(f"signal-{signal_sent}") / "metrics.jsonl"
            while not metrics.exists():
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.send_signal(signal_sent)
            self.assertEqual(process.wait(60), code)
            size = metrics.stat().st_size
            time.sleep(0.3)
            self.assertEqual(metrics.stat().st_size, size, "the program goes on")

    def test_a_wrong_option_ends_each_program(self):
        for program, words, wrong in (("fsdp-finetune", [], "--lerning-rate"), ("fsdp-memprobe", [], "--serch"), ("fsdp-eval", ["x"], "--chess-position"),
                                      ("fsdp-ckpt-convert", ["a", "b"], "--overwite"), ("fsdp-download", ["a/b"], "--revison"),
                                      ("fsdp-download", TOKENS, "--document"), ("fsdp-bf16check", [], "--quik")):
            result = fsdp_cli.run(program, [*words, wrong])
            self.assert_refused(result, 2, wrong, "did you mean")
            self.assertEqual(result.out, "")
        self.assert_refused(self.train("wrong", "--betas", "0.9", ranks=2, code=2), 2, "--betas")
        result = fsdp_cli.run("fsdp-finetune", ["--bach-size", 4, "--lr", 1, "--fou", 7, "x"])
        self.assert_refused(result, 2, "not expected: --bach-size 4 --fou 7 x; did you mean --batch-size?")

    def test_a_negative_number_is_told_the_least(self):
        for option, words in (("--batch-size", "-4 is negative, give 1 to 1000000000"), ("--max-nonfinite-steps", "-4 is negative, give more than 0"), ("--lr", "-4 is negative, give 0 or more")):
            self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--train-data", "x.h5", option, -4]), 2, option, words)

    def test_a_wrong_value_of_a_variable_ends_each_program(self):
        for program, words in (("fsdp-finetune", []), ("fsdp-memprobe", []), ("fsdp-eval", ["x"]), ("fsdp-ckpt-convert", ["a", "b"]),
                               ("fsdp-download", ["a/b"]), ("fsdp-download", TOKENS), ("fsdp-bf16check", [])):
            result = fsdp_cli.run(program, words, env={"FSDP_BF16_GEMM": "widend"})
            self.assert_refused(result, 2, "FSDP_BF16_GEMM=widend: expected native or widened")
        self.assert_refused(self.train("isa", ranks=2, code=2, env={"FSDP_CPU_ISA": "avx-512"}), 2, "FSDP_CPU_ISA=avx-512")

    def test_a_variable_that_nothing_reads_is_told_once(self):
        result = self.train("told", "--max-steps", 1, ranks=2, env={"FSDP_BF16_GEM": "native", "FSDP_SHARDING_STRATEGY": "1", "FSDP_OPT_SEED": "1"})
        self.assertEqual([line for line in result.err.splitlines() if "FSDP_" in line],
                         ["warning: FSDP_BF16_GEM: these programs know no such variable; did you mean FSDP_BF16_GEMM?",
                          "warning: FSDP_SHARDING_STRATEGY: these programs know no such variable"])

    def test_an_instruction_set_that_the_processor_lacks_is_told(self):
        lacking = {"x86_64": "sve", "aarch64": "avx2"}[platform.machine()]
        result = self.train("lacking", "--max-steps", 1, env={"FSDP_CPU_ISA": lacking})
        self.assertIn(f"FSDP_CPU_ISA={lacking}: this processor cannot;", result.err)

    def test_dry_run_tells_the_plan_and_writes_nothing(self):
        result = self.train("dry", "--dry-run", "--total-batch-size", "16", "--batch-size", "2", ranks=2)
        for words in ("2 ranks on 1 node", "full-shard", "mingpt 2 x 32", "64 rows x 32 tokens",
                      "16 rows per step (2 ranks x 2 x 4 micro-batches)", "4 steps", "predicted peak"):
            self.assertIn(words, result.err)
        self.assertFalse(self.run_directory("dry").exists())

    def test_a_column_is_named_by_an_option_that_there_is(self):
        file = self.folder / "texts.csv"
        file.write_text("title,body\na,some words to learn\n")
        self.assert_refused(self.train("column", "--train-data", file, "--tokenizer", "gpt2", "--vocab-size", 50257, code=4), 4, "--data-field")
        self.train("column", "--train-data", file, "--tokenizer", "gpt2", "--vocab-size", 50257, "--data-field", "body", "--max-steps", 1)


if __name__ == "__main__":
    fsdp_cli.main()
