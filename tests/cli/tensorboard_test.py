"""Event files: the data of metrics.jsonl, record by record, during a run, across a restart, and as TensorBoard itself reads them."""

import functools
import math
import resource
import signal
import struct
import unittest

import fsdp_cli

try:
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
except ImportError:
    event_accumulator = None

NEEDS_TENSORBOARD = unittest.skipIf(event_accumulator is None, "tensorboard is not installed (scripts/setup --full)")


@functools.cache
def after_byte(crc):
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:  # runs that go on meanwhile write tens of thousands of records
        crc = crc >> 8 ^ after_byte((crc ^ byte) & 0xFF)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """Returns the data of every record after comparing both checksums."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        length, = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == crc32c(data[at:at + 8]), "checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == crc32c(body), "checksum of a record"
        found.append(body)
        at += 16 + length
    return found


class TensorBoard(fsdp_cli.Case):
    def files(self, run):
        return sorted(self.run_directory(run).glob("events.out.tfevents.*"))

    def scalars(self, run, tag):
        accumulator = event_accumulator.EventAccumulator(str(self.run_directory(run)), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        return [(e.step, e.value) for e in accumulator.Scalars(tag)], accumulator

    def test_records_are_whole_and_as_many_as_metrics(self):
        self.train("whole", "--max-steps", 4, "--val-data", self.val_data, "--eval-every", 2, ranks=2)
        file, = self.files("whole")
        self.assertRegex(file.name, r"^events\.out\.tfevents\.\d{10}\.[^/]+\.\d+\.\d+$")
        found = records(file)
        self.assertIn(b"brain.Event:2", found[0])
        lines = fsdp_cli.records(self.run_directory("whole"))
        self.assertEqual(len(found), 3 + len(lines))  # version, session and options
        for body, line in zip(found[3:], lines):
            name, tag = ("loss", b"train/loss") if "loss" in line else ("val_loss", b"validation/loss")
            self.assertIn(tag, body)
            self.assertIn(struct.pack("<f", line[name]), body)

    def test_none_where_none_is_wanted(self):
        self.train("none", "--max-steps", 1, "--no-tensorboard")
        self.assertEqual(self.files("none"), [])

    def test_a_new_run_of_the_name_takes_the_old_files_aside(self):
        self.train("again", "--max-steps", 2)
        old, = self.files("again")
        self.train("again", "--max-steps", 1)
        self.assertTrue((self.run_directory("again") / "previous-1" / old.name).exists())
        self.assertEqual(len(self.files("again")), 1)

    def test_a_full_disk_costs_no_points(self):
        """Files cannot grow for some time: training continues, and no record is missing or torn afterwards."""
        log = self.folder / "full.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("full", "--max-steps", 1000000, "--log-every", 1000000), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)

        def wait_for(condition):
            fsdp_cli.wait_for(process, log, condition)

        wait_for(lambda: self.files("full") and self.files("full")[0].stat().st_size > 2000)
        file, = self.files("full")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (file.stat().st_size + 100, resource.RLIM_INFINITY))
        wait_for(lambda: "TensorBoard's points wait in memory" in log.read_text())
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        size = file.stat().st_size
        wait_for(lambda: file.stat().st_size > size + 2000)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        self.assertEqual(len(records(file)), 3 + len(fsdp_cli.records(self.run_directory("full"))))

    @NEEDS_TENSORBOARD
    def test_tensorboard_sees_a_run_that_goes_on(self):
        """Calls Reload() of one accumulator as the server's loop does: new points each time, none twice, none torn."""
        log = self.folder / "live.log"
        # Large batches: a reader on a busy machine must be faster than the run, or Reload() never comes to the end.
        more = ["--max-steps", 1000000, "--log-every", 1000000, "--batch-size", 64]
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("live", *more), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: self.files("live") and self.files("live")[0].stat().st_size > 2000)
        accumulator = plugin_event_accumulator.EventAccumulator(str(self.run_directory("live")), tensor_size_guidance={"scalars": 0})
        seen = 0
        for _ in range(3):
            def has_grown():
                accumulator.Reload()
                return "train/loss" in accumulator.Tags()["tensors"] and len(accumulator.Tensors("train/loss")) >= seen + 10
            fsdp_cli.wait_for(process, log, has_grown)
            points = accumulator.Tensors("train/loss")
            self.assertEqual([p.step for p in points], list(range(1, len(points) + 1)))
            seen = len(points)
        self.assertIsNone(process.poll(), "the run was over before it was looked at")
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        accumulator.Reload()
        lines = fsdp_cli.steps(self.run_directory("live"))
        points = accumulator.Tensors("train/loss")
        self.assertEqual([p.step for p in points], [r["step"] for r in lines])
        for point, line in zip(points, lines):
            self.assertTrue(math.isclose(point.tensor_proto.float_val[0], line["loss"], rel_tol=1e-6))

    @NEEDS_TENSORBOARD
    def test_tensorboard_reads_a_resumed_run_without_overlap(self):
        options = ["--batch-size", 2, "--save-every", 2]
        self.train("resumed", "--max-steps", 5, *options)
        self.train("resumed", "--max-steps", 8, "--restart-checkpoint-file", self.checkpoints("resumed") / "step-00000004", *options)
        points, accumulator = self.scalars("resumed", "train/loss")
        lines = fsdp_cli.steps(self.run_directory("resumed"))
        self.assertEqual([step for step, _ in points], [r["step"] for r in lines])
        for (_, value), line in zip(points, lines):
            self.assertTrue(math.isclose(value, line["loss"], rel_tol=1e-6))
        # The reader that TensorBoard's plugins use does not take the first session record for a restart.
        newer = plugin_event_accumulator.EventAccumulator(str(self.run_directory("resumed")), tensor_size_guidance={"scalars": 0})
        newer.Reload()
        self.assertEqual([e.step for e in newer.Tensors("train/loss")], [r["step"] for r in lines])
        text = accumulator.Tensors("options/text_summary")[0].tensor_proto.string_val[0].decode()
        self.assertIn("| max-steps | 5 |", text)
        self.assertEqual(len(self.files("resumed")), 2)


if __name__ == "__main__":
    fsdp_cli.main()
