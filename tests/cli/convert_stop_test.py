"""Ctrl-C, SIGTERM, a killed process, a full disk and a file-size limit: no file has the output's name, none is left beside
it, the input is unchanged, and the conversion can be repeated."""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import time

import fsdp_cli
from convert_fixtures import PROGRAM, ROOT, ConvertCase

GIB = 1 << 30
FULL = ROOT / "pt_t211_gpt_full" / "ckpt.pt"


def large_safetensors(path, size):
    """Writes sparse zeros, which use no disk space but still take a second or two to convert."""
    tensors, rows = {}, 16
    for i in range(rows):
        part = size // rows
        tensors[f"layer.{i}.weight"] = {"dtype": "F32", "shape": [part // 4096, 1024], "data_offsets": [i * part, (i + 1) * part]}
    header = json.dumps(tensors).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return path


def catches(pid, number):
    """Returns True once the process has a handler for the signal, because starting may take long."""
    caught = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def wait_while(condition, process):
    """Waits for the condition while the process runs, at most 30 s."""
    deadline = time.monotonic() + 30
    while condition() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)


class Stop(ConvertCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.large = large_safetensors(cls.folder / "large.safetensors", 2 * GIB)

    def begin(self, *arguments, ranks=0):
        """Starts a conversion and waits until it writes its temporary files."""
        log = self.folder / "log"
        process = fsdp_cli.start(PROGRAM, arguments, ranks, log)
        self.addCleanup(fsdp_cli.end_group, process)
        # With the name of their maker, without which a killed process's stay for ever: a moment of a few system calls.
        wait_while(lambda: not any(maker.stat().st_size for maker in self.folder.glob(".*/.fsdp-maker.json")), process)
        self.assertIsNone(process.poll(), log.read_text())
        return process, log

    def check_nothing_left(self, output):
        self.assertFalse(output.exists())
        self.assertEqual(self.temporary_files(), [])
        self.assertEqual(self.large.stat().st_size, self.before.st_size)
        self.assertEqual(self.large.stat().st_mtime_ns, self.before.st_mtime_ns)

    def setUp(self):
        self.before = self.large.stat()
        self.addCleanup(self.remove_outputs)

    def remove_outputs(self):
        """Removes the temporary files of a killed process, which the next test must not take for its own."""
        for path in self.folder.iterdir():
            if path.name not in ("large.safetensors", "train.h5", "val.h5"):
                subprocess.run(["rm", "-r", path], check=True)

    def test_signals(self):
        for number, ranks, name, options in ((signal.SIGINT, 0, "out.pt", []), (signal.SIGTERM, 0, "out.safetensors", []),
                                             (signal.SIGTERM, 0, "dcp", ["--shards", 2]), (signal.SIGINT, 2, "out.pt", []),
                                             (signal.SIGTERM, 2, "hf", ["--to", "hf"])):
            with self.subTest(signal=number.name, ranks=ranks, name=name):
                output = self.folder / name
                process, log = self.begin(self.large, output, *options, ranks=ranks)
                process.send_signal(number)
                self.assertEqual(process.wait(30), 1, log.read_text())
                errors = [line for line in log.read_text().splitlines() if "error:" in line]
                self.assertEqual(len(errors), 1, log.read_text())
                self.assertIn("stopped", errors[0])
                self.check_nothing_left(output)

    def test_a_signal_to_one_rank_stops_all(self):
        process, log = self.begin(self.large, self.folder / "one.pt", ranks=2)
        ranks = fsdp_cli.rank_processes(process.pid, PROGRAM)
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGTERM)
        self.assertEqual(process.wait(60), 1, log.read_text())
        self.assertIn("stopped", log.read_text())
        self.check_nothing_left(self.folder / "one.pt")

    def test_killed_and_repeated(self):
        output = self.folder / "killed.safetensors"
        process, _ = self.begin(self.large, output)
        process.kill()
        process.wait(30)
        self.assertFalse(output.exists())
        self.convert(self.large, "killed.safetensors")
        self.assertEqual(output.stat().st_size // GIB, 2)
        self.assertEqual(self.temporary_files(), [])  # those of the killed process, too
        result = fsdp_cli.run(PROGRAM, ["--verify", self.large, output])
        self.assertEqual(result.code, 0, str(result))

    def test_check_and_verify_stop(self):
        for arguments in (["--check", self.large], ["--verify", self.large, self.large]):
            process = fsdp_cli.start(PROGRAM, arguments, 0, self.folder / "log")
            wait_while(lambda: not catches(process.pid, signal.SIGINT), process)
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            code = process.wait(30)
            text = (self.folder / "log").read_text()
            self.assertEqual(code, 1, text)
            self.assertIn("stopped", text)


class NoRoom(ConvertCase):
    def test_full_disk(self):
        disk = self.small_disk("40k")
        for ranks in (0, 2):
            for name, options in (("out.pt", []), ("out.safetensors", []), ("dcp", ["--shards", 2]), ("hf", ["--to", "hf"])):
                with self.subTest(name=name, ranks=ranks):
                    result = fsdp_cli.run(PROGRAM, [FULL, disk / name, *options], ranks)
                    self.assert_refused(result, 1, name)
                    self.assertRegex(result.errors()[0], "No space left|are free on this file system")
                    self.assertEqual(list(disk.iterdir()), [], "nothing is left")
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        self.assertEqual(fsdp_cli.run(PROGRAM, [FULL, disk / "out.pt"]).code, 0)

    @staticmethod
    def limit_file_size():
        # Python ignores SIGXFSZ, and exec inherits that; the child of a shell has the default action, which ends the process.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 1024, 32 * 1024))

    def test_file_size_limit(self):
        for name, options in (("out.pt", []), ("out.safetensors", []), ("dcp", ["--to", "dcp"]), ("hf", ["--to", "hf"])):
            with self.subTest(name):
                result = fsdp_cli.run(PROGRAM, [FULL, self.folder / name, *options], before=self.limit_file_size)
                self.assert_refused(result, 1, name if "." in name else "")
                self.assertRegex(result.errors()[0], "File too large|files of at most 32768 bytes")
                self.assertFalse((self.folder / name).exists())
                self.assertEqual(self.temporary_files(), [])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["train.h5", "val.h5"])


if __name__ == "__main__":
    fsdp_cli.main()
