"""fsdp-download tokens: Ctrl-C, SIGTERM, a killed process, a full disk and a file-size limit leave no partial output and
keep the old one; memory does not grow with the input."""

import os
import resource
import signal
import subprocess
import sys
import time

import fsdp_cli
from tokens_cli import DATA, PROGRAM, TokensCase, read

LAYOUTS = ("--pack", "--documents")


class Stop(TokensCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.large = cls.folder / "large.jsonl"
        cls.large.write_text((DATA / "chess" / "train.jsonl").read_text() * 120)  # 95 MB

    def begin(self, output, layout):
        """Starts a run and waits until it writes its temporary file."""
        log = self.folder / "log"
        process = fsdp_cli.start(PROGRAM, ["tokens", "--input", self.large, "--tokenizer", "gpt2", "--output", output, layout], 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        deadline = time.monotonic() + 30
        while not self.temporary_files(output.parent) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.2)
        self.assertIsNone(process.poll(), log.read_text())
        return process, log

    def test_two_writers_of_one_output(self):
        """Two writers may even have the same process id, on two hosts or in two containers: the output is one whole file."""
        alone = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]
        try:
            if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
                alone = []
        except FileNotFoundError:
            alone = []
        inputs = []
        for number in range(2):
            inputs.append(self.folder / f"writer{number}.jsonl")
            inputs[-1].write_text((DATA / "chess" / "train.jsonl").read_text() * (4 + number))
        output = self.folder / "both" / "out.h5"
        output.parent.mkdir()
        rows = []
        for both in ([0], [1], [0, 1], [1, 0]):
            running = [subprocess.Popen([*alone, *fsdp_cli.command(PROGRAM, ["tokens", "--input", inputs[i], "--tokenizer", "gpt2", "--output", output, "--pack"], 0)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=fsdp_cli.environment()) for i in both]
            for process in running:
                err = process.communicate(timeout=90)[1]
                self.assertEqual(process.returncode, 0, err)
            rows.append(read(output)["input_ids"].shape)
            self.assertEqual(self.temporary_files(output.parent), [])
        self.assertNotEqual(rows[0], rows[1])
        self.assertTrue(set(rows[2:]) <= set(rows[:2]), rows)

    def test_signals(self):
        output = self.folder / "signals" / "out.h5"
        output.parent.mkdir()
        output.write_text("old")
        for number in (signal.SIGINT, signal.SIGTERM):
            for layout in LAYOUTS:
                with self.subTest(signal=number.name, layout=layout):
                    process, log = self.begin(output, layout)
                    process.send_signal(number)
                    self.assertEqual(process.wait(30), 1, log.read_text())
                    self.assertIn(f"error: stopped by signal {int(number)}", log.read_text())
                    self.assertEqual([path.name for path in output.parent.iterdir()], ["out.h5"])
                    self.assertEqual(output.read_text(), "old")

    def test_killed_and_repeated(self):
        for layout in LAYOUTS:
            with self.subTest(layout):
                output = self.folder / f"killed{layout}" / "out.h5"
                output.parent.mkdir()
                process, _ = self.begin(output, layout)
                process.kill()
                process.wait(30)
                self.assertFalse(output.exists())
                self.tokens(DATA / "chess" / "train.jsonl", output, layout)
                self.assertTrue(read(output))

    def test_memory(self):
        """Measures peak memory of one process by starting it from a process that has no other children."""
        script = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr); sys.exit(code)")
        for layout in LAYOUTS:
            command = fsdp_cli.command(PROGRAM, ["tokens", "--input", self.large, "--tokenizer", "gpt2", "--output", self.folder / "m.h5",
                                                 "--quiet", "--threads", 2, layout], 0)
            result = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
            peak_mib = int(result.stderr.split()[-1]) // 1024
            fsdp_cli.say(f"{layout}: {peak_mib} MiB at most for {self.large.stat().st_size >> 20} MiB of text, {(self.folder / 'm.h5').stat().st_size >> 20} MiB of tokens")
            self.assertLess(peak_mib, 80)


class NoRoom(TokensCase):
    def test_full_disk(self):
        disk = self.small_disk("600k")
        for layout in LAYOUTS:
            with self.subTest(layout):
                result = self.tokens(DATA / "chess" / "train.jsonl", disk / "out.h5", layout, code=1)
                self.assert_refused(result, 1, "out.h5: token file not written", "No space left")
                self.assertEqual(len(result.err.splitlines()), 2, str(result))
                self.assertEqual(list(disk.iterdir()), [], "nothing is left")
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        self.tokens(DATA / "chess" / "train.jsonl", disk / "out.h5")

    @staticmethod
    def limit_file_size():
        # Python ignores SIGXFSZ, and exec inherits that; the child of a shell has the default action, which ends the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, 200 * 1024))

    def test_file_size_limit(self):
        for layout in LAYOUTS:
            with self.subTest(layout):
                result = self.tokens(DATA / "chess" / "train.jsonl", self.folder / "limit.h5", layout, code=1, before=self.limit_file_size)
                self.assert_refused(result, 1, "limit.h5: token file not written", "File too large")
                self.assertEqual(len(result.err.splitlines()), 2, str(result))
                self.assertFalse((self.folder / "limit.h5").exists())
                self.assertEqual(self.temporary_files(), [])


if __name__ == "__main__":
    fsdp_cli.main()
