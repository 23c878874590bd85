"""Stopping early: signals and time limits end a run with exit code 85 and a checkpoint to continue from."""

import os
import shlex
import signal
import subprocess
import time

import numpy

import fsdp_cli


class Stop(fsdp_cli.Case):
    def start_and_wait(self, name, *options, ranks=2, steps=20):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options), ranks, log)
        self.addCleanup(fsdp_cli.end_group, process)
        end = time.monotonic() + 60
        metrics = self.run_directory(name) / "metrics.jsonl"
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < steps:
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.01)
        return process, log

    def assert_continues(self, name, *options, more=5):
        """The stopped run, continued for some steps, equals an undisturbed run bit for bit."""
        stopped = len(fsdp_cli.losses(self.run_directory(name)))
        total = stopped + more
        self.train(name, "--max-steps", total, "--restart-checkpoint-file", "latest", *options, ranks=2)
        self.train("undisturbed", "--max-steps", total, *options, ranks=2)
        self.assertEqual(fsdp_cli.losses(self.run_directory(name)), fsdp_cli.losses(self.run_directory("undisturbed")))

    def test_signals_to_the_launcher(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                name = number.name.lower()
                process, log = self.start_and_wait(name, "--max-steps", 100000)
                process.send_signal(number)
                self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
                self.assertIn(f"signal {int(number)}", log.read_text())
                self.evaluate(self.checkpoints(name) / "latest", "--data", self.val_data)
                self.assert_continues(name)

    def test_the_last_line_says_how_to_go_on(self):
        """Its command continues the run without further options, whatever the names of the run and its folder."""
        self.runs = self.folder / "all my runs"
        process, log = self.start_and_wait("it's one", "--max-steps", 100000, "--batch-size", 2, ranks=0)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        words = shlex.split(log.read_text().splitlines()[-1].partition("on any number of ranks: ")[2])
        self.assertEqual(words[0], "fsdp-finetune")
        steps = len(fsdp_cli.losses(self.run_directory("it's one")))
        result = fsdp_cli.run("fsdp-finetune", [*words[1:], "--max-steps", steps + 2])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("it's one"))), steps + 2)
        # Options of the earlier job are not restored, which the log says; without the run's name there is no checkpoint.
        self.assertIn("--batch-size 2", result.err)
        lost = fsdp_cli.run("fsdp-finetune", ["--out-dir", self.runs, "--restart-checkpoint-file", "latest", *fsdp_cli.COMMON])
        self.assert_refused(lost, 4, "it's one", "--run-name")

    def test_a_signal_to_one_rank_stops_all(self):
        process, log = self.start_and_wait("one", "--max-steps", 100000, "--total-batch-size", 32)
        ranks = fsdp_cli.rank_processes(process.pid, "fsdp-finetune")
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGTERM)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertRegex(log.read_text(), r"stopped   by signal 15( to rank 1)?   step")
        self.assert_continues("one", "--total-batch-size", 32)

    def test_a_signal_without_a_launcher(self):
        process, log = self.start_and_wait("alone", "--max-steps", 100000, ranks=0)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.evaluate(self.checkpoints("alone") / "latest", "--data", self.val_data)

    def test_other_signals_that_ask_to_end(self):
        for number in (signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR2):
            for ranks in (0, 2):
                with self.subTest(signal=number.name, ranks=ranks):
                    name = f"{number.name.lower()}-{ranks}"
                    process, log = self.start_and_wait(name, "--max-steps", 100000, ranks=ranks)
                    targets = fsdp_cli.rank_processes(process.pid, "fsdp-finetune") if ranks else [process.pid]
                    os.kill(targets[-1], number)
                    self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
                    self.evaluate(self.checkpoints(name) / "latest", "--data", self.val_data)

    def test_what_nohup_and_background_jobs_of_a_script_ignore_stays_ignored(self):
        process = subprocess.Popen(["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *fsdp_cli.command(
            "fsdp-finetune", self.train_arguments("nohup", "--max-steps", 100000), 0)], stderr=subprocess.DEVNULL, env=fsdp_cli.environment())
        self.addCleanup(fsdp_cli.end_group, process)
        metrics = self.run_directory("nohup") / "metrics.jsonl"
        end = time.monotonic() + 60
        while (not metrics.exists() or metrics.read_bytes().count(b"\n") < 20) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY)

    def test_a_log_that_nobody_reads(self):
        """`2>&1 | head -n 1`, or a tee that died: the run continues to its end."""
        reader, writer = os.pipe()
        command = fsdp_cli.command("fsdp-finetune", self.train_arguments("pipe", "--max-steps", 300, "--log-every", 1), 0)
        process = subprocess.Popen(command, stdout=writer, stderr=writer, env=fsdp_cli.environment(), start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        os.close(writer)
        os.read(reader, 10)
        os.close(reader)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(os.readlink(self.checkpoints("pipe") / "latest"), "step-00000300")

    def test_time_limit(self):
        started = time.monotonic()
        result = self.train("limit", "--max-steps", 1000000, "--time-limit", "0:08", "--json", code=fsdp_cli.STOPPED_EARLY, ranks=2)
        self.assertLess(time.monotonic() - started, 20)
        self.assertTrue(result.json()["stopped_early"])
        self.assertIn("stopped   out of time   step", result.err)
        self.evaluate(self.checkpoints("limit") / "latest", "--data", self.val_data)

    def test_the_schedulers_end_time(self):
        env = {"SLURM_JOB_END_TIME": str(int(time.time()) + 9)}
        self.train("slurm", "--max-steps", 1000000, code=fsdp_cli.STOPPED_EARLY, env=env, ranks=2)
        self.assertTrue((self.checkpoints("slurm") / "latest" / "run.json").exists())

    def test_evaluating_only(self):
        """Evaluation takes a minute: it is ended by a signal to one rank, and by the time limit."""
        data = fsdp_cli.write_tokens(self.folder / "long.h5", numpy.resize(fsdp_cli.random_tokens(seed=3), (200000, fsdp_cli.SEQ_LEN + 1)))
        log = self.folder / "evaluates.log"
        arguments = ["--max-epochs", -1, "--val-data", f"first={self.val_data},long={data}", "--json"]
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("evaluates", *arguments), 2, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: "   first   loss" in log.read_text())
        os.kill(fsdp_cli.rank_processes(process.pid, "fsdp-finetune")[1], signal.SIGUSR1)
        self.assertEqual(process.wait(20), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertRegex(log.read_text(), r"stopped   by signal 10( to rank 1)?   before the end of the validation: start it again")
        self.assertNotIn("   long   loss", log.read_text())
        stopped = self.train("evaluates", *arguments, "--time-limit", "0:08", ranks=2, code=fsdp_cli.STOPPED_EARLY)
        self.assertIn("stopped   out of time   before the end of the validation", stopped.err)
        self.assertTrue(stopped.json()["stopped_early"])
        self.assertNotIn("val_loss", stopped.json())
        self.assertFalse(self.train("evaluates", *arguments[:2], "--val-data", self.val_data, "--json").json()["stopped_early"])

    def test_a_text_ends_where_it_is_asked_to(self):
        text = ["--prompt", "To be", "--tokenizer", "gpt2", "--vocab-size", 50257, "--num-tokens", 10_000_000]
        for name, said, code, options in (("trained", "done ", 0, ["--max-steps", 3]), ("not", "model ", fsdp_cli.STOPPED_EARLY, ["--max-epochs", -1, "--json"])):
            with self.subTest(name):
                log = self.folder / f"{name}.log"
                process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, *options, *text), 2, log)
                self.addCleanup(fsdp_cli.end_group, process)
                fsdp_cli.wait_for(process, log, lambda: f"\n{said}" in log.read_text())
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(20), code, log.read_text())
                if code:
                    self.assertIn('"stopped_early": true', log.read_text())
                self.assertRegex(log.read_text(), r"text      To be(.|\n)*stopped   by signal 15( to rank 0)?   before the end of the text")

    def test_no_time_at_all_still_leaves_a_checkpoint(self):
        result = self.train("none", "--max-steps", 10, "--time-limit", "0:01", "--json", code=fsdp_cli.STOPPED_EARLY)
        self.assertEqual(result.json()["steps"], 0)
        self.train("none", "--max-steps", 3, "--restart-checkpoint-file", "latest")
        self.train("undisturbed", "--max-steps", 3)
        self.assertEqual(fsdp_cli.losses(self.run_directory("none")), fsdp_cli.losses(self.run_directory("undisturbed")))


if __name__ == "__main__":
    fsdp_cli.main()
