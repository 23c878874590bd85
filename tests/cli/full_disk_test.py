"""A full disk or a file-size limit during a save: one clear message, exit code 1, the previous checkpoint stays."""

import os
import resource
import signal
import subprocess
import time

import fsdp_cli


class FullDisk(fsdp_cli.Case):
    def check(self, folder, result, saved):
        self.assertEqual(result.code, 1, str(result))
        self.assertTrue(result.errors(), str(result))
        self.assertIn("checkpoint", result.errors()[-1])
        self.assertEqual(os.readlink(folder / "latest"), saved)
        self.assertEqual(sorted(p.name for p in folder.iterdir()), ["latest", saved], "no half checkpoint is left")
        self.evaluate(folder / "latest", "--data", self.val_data)

    def test_full_disk(self):
        disk = self.small_disk("1400k")  # two checkpoints of 540 kB and the metrics
        folder = disk / "full" / "checkpoints"
        result = fsdp_cli.run("fsdp-finetune", [*self.train_arguments("full", "--max-steps", 8, "--save-every", 2), "--out-dir", disk], ranks=2)
        names = sorted(p.name for p in folder.iterdir())
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("No space left", result.err)
        self.assertNotIn("a checkpoint takes", result.err, "two have room at the start")
        self.assertEqual(names, ["latest", "step-00000002", "step-00000004"], str(result))
        self.assertEqual(os.readlink(folder / "latest"), "step-00000004")
        self.evaluate(folder / "latest", "--data", self.val_data)
        self.assertEqual([r["step"] for r in fsdp_cli.steps(disk / "full")], list(range(1, 9)), "the run went on training")
        # With room again the run continues from the previous checkpoint.
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        resumed = fsdp_cli.run("fsdp-finetune", [*self.train_arguments("full", "--max-steps", 8, "--restart-checkpoint-file", "latest"), "--out-dir", disk], ranks=2)
        self.assertEqual(resumed.code, 0, str(resumed))
        self.train("undisturbed", "--max-steps", 8, ranks=2)
        self.assertEqual(fsdp_cli.losses(disk / "full"), fsdp_cli.losses(self.run_directory("undisturbed")))

    def test_too_little_room_is_told_at_the_start(self):
        disk = self.small_disk("680k")  # a checkpoint's tensors take 349 kB, its files 540 kB
        result = fsdp_cli.run("fsdp-finetune", [*self.train_arguments("small", "--max-steps", 1, "--no-save"), "--out-dir", disk], ranks=2)
        self.assertNotIn("a checkpoint takes", result.err, "--no-save writes none")
        for more, count in ((["--max-rows", 8], 2), (["--keep-last", 3], 4)):
            result = fsdp_cli.run("fsdp-finetune", [*self.train_arguments("small", "--max-steps", 1, *more), "--out-dir", disk], ranks=2)
            self.assertRegex(result.err, rf"a checkpoint takes 3\d\d KiB: {count} are there at once")

    def limit_file_size(self):
        # Python ignores SIGXFSZ, and exec inherits that; the child of a shell has the default action, which ends the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, 200 * 1024))

    def test_file_size_limit(self):
        self.train("limit", "--max-steps", 2)
        result = self.train("limit", "--max-steps", 6, "--save-every", 2, "--restart-checkpoint-file", "latest", code=1, before=self.limit_file_size)
        self.check(self.checkpoints("limit"), result, "step-00000002")
        self.assertIn("File too large", result.err)

    def test_metrics_without_room_wait(self):
        """The disk is full for some time: training continues, and no line is missing afterwards."""
        disk = self.small_disk("4m")
        log = self.folder / "wait.log"
        process = fsdp_cli.start("fsdp-finetune", [*self.train_arguments("wait", "--max-steps", 1000000, "--log-every", 1000000), "--out-dir", disk], 2, log)
        self.addCleanup(fsdp_cli.end_group, process)

        def wait_for(condition):
            fsdp_cli.wait_for(process, log, condition)

        metrics = disk / "wait" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 1000)
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"0" * 4096)
            except OSError:
                pass
        wait_for(lambda: "lines wait in memory" in log.read_text())
        # An attempt may write the beginning of a line and then remove it, so only whole lines count.
        lines = metrics.read_bytes().count(b"\n")
        time.sleep(0.5)
        self.assertEqual(metrics.read_bytes().count(b"\n"), lines)
        wait_for(lambda: metrics.read_bytes()[-1:] == b"\n")
        (disk / "filler").unlink()
        wait_for(lambda: metrics.read_bytes().count(b"\n") > lines)
        process.terminate()
        self.assertEqual(process.wait(30), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertEqual(log.read_text().count("lines wait in memory"), 1)
        fsdp_cli.losses(disk / "wait")  # every step once
        self.assertTrue((disk / "wait" / "checkpoints" / "latest" / "run.json").exists())

    def test_metrics_that_never_find_room(self):
        small = ["--embed-size", 8, "--num-layers", 1, "--max-steps", 600, "--json"]

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (160 * 1024, 160 * 1024))

        result = self.train("never", *small, before=limit)
        self.assertEqual(result.json()["steps"], 600)
        self.assertIn("could not be written", result.err)
        self.assertEqual(result.err.count("lines wait in memory"), 1)
        steps = [r["step"] for r in fsdp_cli.steps(self.run_directory("never"))]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual(os.readlink(self.checkpoints("never") / "latest"), "step-00000600")


if __name__ == "__main__":
    fsdp_cli.main()
