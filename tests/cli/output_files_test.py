"""Outputs that are not plain files: pipes and devices stay, links stay links, a file keeps its mode."""

import os
import stat
import threading

import fsdp_cli
from convert_fixtures import ROOT

FULL = ROOT / "pt_t211_gpt_full" / "ckpt.pt"
PLAN = [*fsdp_cli.TINY_MODEL, "--ranks", 2, "--gpu", "t4", "--search", "--max-batch", 8, "--plan"]
OTHER = ROOT / "dcp_t211_ws2_app" / "ckpt"


class Outputs(fsdp_cli.Case):
    def setUp(self):
        self.here = self.folder / self._testMethodName
        self.here.mkdir()
        self.pipe = self.here / "pipe"
        os.mkfifo(self.pipe)

    def read_pipe(self, program, arguments):
        """Returns what the program writes into a pipe that has a reader."""
        text = []
        reader = threading.Thread(target=lambda: text.append(self.pipe.read_text()))
        reader.start()
        result = fsdp_cli.run(program, arguments)
        if result.code not in (0, 3):  # on failure, let the reader end
            os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
        reader.join(30)
        self.assertTrue(text and stat.S_ISFIFO(self.pipe.lstat().st_mode), str(result))
        return result, text[0]

    def test_text_goes_into_a_pipe(self):
        result, text = self.read_pipe("fsdp-bf16check", [*fsdp_cli.COMMON, "--quick", "--size-mb", 1, "--exclude-file", self.pipe])
        self.assertIn(result.code, (0, 3), str(result))
        plan = [*PLAN, self.pipe]
        result, text = self.read_pipe("fsdp-memprobe", plan)
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("# Written by fsdp-memprobe", text)
        # Without a reader the program does not wait, and the pipe is not replaced.
        result = fsdp_cli.run("fsdp-memprobe", plan)
        self.assert_refused(result, 1, self.pipe, "nobody reads")
        self.assertTrue(stat.S_ISFIFO(self.pipe.lstat().st_mode))

    def test_a_device_is_written_in_place(self):
        device = self.here / "full"
        try:
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))  # /dev/full
        except PermissionError as error:
            self.skipTest(str(error))
        result = fsdp_cli.run("fsdp-memprobe", [*PLAN, device])
        self.assert_refused(result, 1, device, "No space left")
        result = self.train("trace", "--max-steps", 1, "--trace", device, code=1)
        self.assert_refused(result, 1, device, "No space left")
        self.assertTrue(stat.S_ISCHR(device.lstat().st_mode))

    def test_what_needs_places_is_refused(self):
        texts = self.here / "texts.txt"
        texts.write_text("to be or not to be\n")
        for program, arguments in (("fsdp-ckpt-convert", [FULL, self.pipe, "--to", "torch", "--overwrite"]),
                                   ("fsdp-ckpt-convert", [FULL, self.pipe, "--to", "safetensors"]),
                                   ("fsdp-download", ["tokens", "--input", texts, "--tokenizer", "gpt2", "--output", self.pipe])):
            result = fsdp_cli.run(program, arguments)
            self.assert_refused(result, 2, self.pipe, "is a pipe", "regular file")
            self.assertTrue(stat.S_ISFIFO(self.pipe.lstat().st_mode))
        (self.here / "final.pt").symlink_to(self.pipe)
        result = self.train("final", "--max-steps", 1, "--save-final-full", self.here / "final.pt", code=2)
        self.assert_refused(result, 2, "is a pipe")
        self.assertFalse(self.checkpoints("final").exists(), "told before training")

    def test_mode_and_links(self):
        output, link = self.here / "real.pt", self.here / "link.pt"
        link.symlink_to("real.pt")
        for source in (FULL, OTHER):
            result = fsdp_cli.run("fsdp-ckpt-convert", [source, link, "--overwrite"])
            self.assertEqual(result.code, 0, str(result))
            self.assertTrue(link.is_symlink())
            if source == FULL:
                output.chmod(0o640)
                before = output.read_bytes()
        self.assertEqual(stat.S_IMODE(output.stat().st_mode), 0o640)
        self.assertNotEqual(output.read_bytes(), before)
        self.assertEqual(sorted(p.name for p in self.here.iterdir()), ["link.pt", "pipe", "real.pt"])


if __name__ == "__main__":
    fsdp_cli.main()
