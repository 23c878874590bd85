"""RUN/status tells what each rank of a running job uses, and --watch shows it."""

import json
import os
import re
import signal
import time

import fsdp_cli

MIB = 2**20


class Watch(fsdp_cli.Case):
    def start(self, name, *more, ranks=2):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, "--max-steps", 1000000, "--log-every", 1000000, *more), ranks, log)
        self.addCleanup(fsdp_cli.end_group, process)
        status = self.run_directory(name) / "status" / "ranks-0.json"
        fsdp_cli.wait_for(process, log, status.exists)
        return process, log, status

    def view(self, name):
        result = fsdp_cli.run("fsdp-eval", ["--runs", self.run_directory(name), "--watch"])
        self.assertEqual(result.code, 0, str(result))
        return result.out

    def test_ranks_of_a_running_job(self):
        process, log, status = self.start("two", "--save-every", 10000)
        first = json.loads(status.read_text())
        fsdp_cli.wait_for(process, log, lambda: json.loads(status.read_text()) != first)  # every five seconds
        node = json.loads(status.read_text())
        self.assertEqual((node["format"], [rank["rank"] for rank in node["ranks"]]), ("fsdp-status", [0, 1]))
        self.assertLess(status.stat().st_size, 6000)
        pids = fsdp_cli.rank_processes(process.pid, "fsdp-finetune")
        resident = sorted(self.resident_bytes(pid) for pid in pids)
        for rank in node["ranks"]:
            self.assertTrue(0.01 < rank["cores"] < 1.2, rank)  # one thread each, on a machine that may be busy
            self.assertTrue(resident[0] * 0.7 < rank["resident_bytes"] < resident[-1] * 1.3, (rank, resident))
            self.assertGreaterEqual(rank["peak_resident_bytes"], rank["resident_bytes"])
            self.assertTrue(0 < rank["step"] <= len(fsdp_cli.steps(self.run_directory("two"))) + 1)
            self.assertNotIn("watts", rank)
        view = self.view("two")
        self.assertRegex(view, r"(?m)^last step 0:0\d ago   next save in [\d,]+ steps? \([\d:]+\)$")
        self.assertRegex(view, r"(?m)^ranks     rank  waits  cores +resident +peak$")
        for number in (0, 1):
            row = re.search(rf"(?m)^ {{13}}{number} +\d+ % +([\d.]+) +([\d.]+) MiB +([\d.]+) MiB$", view)
            self.assertIsNotNone(row, view)
            self.assertLess(abs(float(row[2]) * MIB / resident[0] - 1), 0.3, view)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertFalse(status.parent.exists())
        self.assertNotRegex(self.view("two"), r"(?m)^(ranks|last step) ")

    @staticmethod
    def resident_bytes(pid):
        with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def test_after_a_kill_the_figures_stay_and_the_next_job_begins_anew(self):
        process, _, status = self.start("killed", "--save-interval-minutes", 0.02, ranks=0)
        self.assertRegex(self.view("killed"), r"next save in 0:0\d")
        process.kill()
        process.wait(30)
        self.assertRegex(self.view("killed"), r"(?s)killed   ended.*ranks     rank  cores")
        other = status.parent / "ranks-7.json"
        other.write_text(status.read_text())
        (status.parent / "notes").write_text("of a user")
        log = self.folder / "again.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("killed", "--restart", "latest", "--max-steps", 1000000), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: not other.exists())
        self.assertTrue((status.parent / "notes").exists())

    def test_files_that_cannot_be_written_are_one_warning(self):
        directory = self.run_directory("refused")
        directory.mkdir(parents=True)
        (directory / "status").write_text("in the way of the folder")
        log = self.folder / "refused.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("refused", "--max-steps", 1000000, "--log-every", 1000000), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: "(fsdp-eval --watch)" in log.read_text())
        time.sleep(6)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())
        self.assertEqual(log.read_text().count("(fsdp-eval --watch)"), 1)
        self.assertEqual((directory / "status").read_text(), "in the way of the folder")


if __name__ == "__main__":
    fsdp_cli.main()
