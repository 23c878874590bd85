"""A job that does not go on says which rank the others wait for, in which collective, and what it does instead: at a
timeout, after SIGQUIT, and from another shell (fsdp-eval --why). Truth is planted: ranks are stopped at random moments,
killed, or work on a file system that takes nothing."""

import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

import fsdp_cli

TRANSPORTS = {"memory": (), "mpi": ("--collectives", "host-staged")}


class Why(fsdp_cli.Case):
    def start(self, name, ranks, *more, env=None, programs=None):
        log = self.folder / f"{name}.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments(
            name, "--max-steps", 1000000, "--log-every", 1000000, *more), ranks, log, env, programs)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, (self.run_directory(name) / "status" / "ranks-0.json").exists)
        pids = fsdp_cli.processes_of_ranks(process.pid)
        self.assertEqual(sorted(pids), list(range(ranks)), log.read_text())
        return process, log, pids

    def why(self, name, code=None, *more):
        result = fsdp_cli.run("fsdp-eval", ["--why", self.run_directory(name), *more])
        if code is not None:
            self.assertEqual(result.code, code, str(result))
        return result

    def wait_for_verdict(self, name):
        """Waits until the run is stuck: five seconds after ranks began to wait."""
        end = time.monotonic() + 60
        while (result := self.why(name)).code != 3 or "since" not in result.out:
            self.assertIn(result.code, (0, 3), str(result))
            self.assertLess(time.monotonic(), end, str(result))
            time.sleep(0.5)
        return result.out

    def assert_goes_on(self, name, process, log):
        steps = len(fsdp_cli.steps(self.run_directory(name)))
        fsdp_cli.wait_for(process, log, lambda: len(fsdp_cli.steps(self.run_directory(name))) > steps + 5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), fsdp_cli.STOPPED_EARLY, log.read_text())

    def assert_ranks_alike(self, report, sharding):
        """All ranks of a group made the same collectives in the same order, by what the verdict compares."""
        made = {}
        for event in report["traceEvents"]:
            args = event.get("args", {})
            if "round" in args and not (sharding.startswith("hybrid") and args["group"] > 0):  # there are two of each group
                is_text, has_tensors = event["cat"] == "collection", event["cat"].startswith(("all-", "reduce-"))
                made.setdefault((args["group"], args["round"]), set()).add(
                    (event["cat"], 0 if is_text else args["bytes"], event["name"] if has_tensors else ""))
        self.assertGreater(len(made), 100)
        self.assertEqual([entry for entry in made.items() if len(entry[1]) > 1], [])

    def test_a_stopped_rank(self):
        choice = random.Random(11)
        cases = list(itertools.product((2, 4, 8), TRANSPORTS, ("full-shard", "no-shard", "hybrid-full-shard", "grad-shard")))
        for ranks, transport, sharding in fsdp_cli.share(cases, 7, 1):
            with self.subTest(ranks=ranks, transport=transport, sharding=sharding):
                name = f"stopped-{ranks}-{transport}-{sharding}"
                more = ("--shard-group-size", 2) if sharding.startswith("hybrid") else ()
                process, log, pids = self.start(name, ranks, "--sharding", sharding, *TRANSPORTS[transport], *more)
                self.assertEqual(self.why(name, 0).out.strip().split(";")[0], "no rank has waited 0:05 for another")
                stopped = choice.randrange(ranks)
                time.sleep(choice.random())
                os.kill(pids[stopped], signal.SIGSTOP)
                text = self.wait_for_verdict(name)
                self.assertRegex(text, rf"^rank {stopped} \(process {pids[stopped]} on [^)]+\) has (not |)(entered|come to) .*"
                                       rf"it is stopped \(state T; kill -CONT {pids[stopped]} lets it go on\)")
                self.assertNotRegex(text, rf"rank (?!{stopped}\b)\d+ \(process")
                self.assertRegex(text, r"ranks? [\d, -]+ waits? since \d\d:\d\d:\d\d\n$")
                report = self.why(name, 3, "--json").json()
                self.assertEqual((report["ranks"], report["is_stuck"]), ([stopped], True))
                self.assertEqual(sorted([*report["waiting"], stopped]), list(range(ranks)))
                self.assert_ranks_alike(report, sharding)
                os.kill(pids[stopped], signal.SIGCONT)
                self.assert_goes_on(name, process, log)
                self.assertIn("no rank has left a record", self.why(name, 4).err)

    def test_in_each_phase_of_a_run(self):
        many = fsdp_cli.write_tokens(self.folder / "many.h5", fsdp_cli.random_tokens(rows=20000))
        words = fsdp_cli.folder("FSDP_DATA") / "shakespeare" / "train.h5"
        phases = {"validate": ("--val-data", many, "--eval-every", 1),
                  "finish save": ("--save-every", 1, "--keep-last", 1),
                  "generate samples": ("--train-data", words, "--vocab-size", 50257, "--max-rows", 64, "--eval-every", 1,
                                       "--sample-prompt", "Hello", "--sample-tokens", 100000)}
        for phase, options in fsdp_cli.share(phases.items(), 2, 1):
            with self.subTest(phase=phase):
                name = phase.replace(" ", "-")
                # Each part of a checkpoint takes rank 0 a second: a save goes on nearly always.
                slow = {"LD_PRELOAD": os.environ.get("TEST_SLOW_FILES", ""), "TEST_SLOW_RANK": "0", "TEST_SLOW_FILE": ".distcp",
                        "TEST_SLOW_MS": "200"} if phase == "finish save" else None
                process, log, pids = self.start(name, 2, *options, env=slow)
                for _ in range(5):
                    os.kill(pids[1], signal.SIGSTOP)
                    text = self.wait_for_verdict(name)
                    os.kill(pids[1], signal.SIGCONT)
                    self.assertRegex(text, rf"^rank 1 \(process {pids[1]} on [^)]+\) has (not |)(entered|come to) .*it is stopped")
                    if f'"{phase}"' in text:
                        break
                self.assertIn(f'"{phase}"', text)
                fsdp_cli.end_group(process)

    def test_a_rank_whose_files_do_not_answer(self):
        shim = os.environ.get("TEST_SLOW_FILES")
        if not shim:
            self.skipTest("tests/support/slow_files.c was not built")
        many = fsdp_cli.write_tokens(self.folder / "many.h5", fsdp_cli.random_tokens(rows=20000))  # more than HDF5 keeps
        cases = (("/many.h5", "read tokens", ("--train-data", many)), (".distcp", "finish save", ("--save-every", 1)))
        for file, work, options in fsdp_cli.share(cases, 2):
            with self.subTest(file=file):
                name = "slow-" + work.replace(" ", "-")
                log = self.folder / f"{name}.log"
                # The rank reads or writes 100 times before its disk takes minutes.
                process = fsdp_cli.start("fsdp-finetune", self.train_arguments(name, "--max-steps", 1000000, *options), 2, log, {
                    "LD_PRELOAD": shim, "TEST_SLOW_RANK": "1", "TEST_SLOW_FILE": file, "TEST_SLOW_MS": "300000", "TEST_SLOW_AFTER": "100"})
                self.addCleanup(fsdp_cli.end_group, process)
                fsdp_cli.wait_for(process, log, (self.run_directory(name) / "status" / "ranks-0.json").exists)
                text = self.wait_for_verdict(name)
                self.assertRegex(text, rf'^rank 1 \(process \d+ on [^)]+\) has not entered .*: it has been in "{work}" for ')
                fsdp_cli.end_group(process)

    def test_at_a_timeout_the_error_says_why(self):
        process, log, pids = self.start("timeout", 3, "--collective-timeout", 3)
        os.kill(pids[1], signal.SIGSTOP)
        end = time.monotonic() + 60
        while "why: " not in log.read_text() and time.monotonic() < end:
            time.sleep(0.1)
        os.kill(pids[1], signal.SIGKILL)
        self.assertNotEqual(process.wait(60), 0)
        text = log.read_text()
        self.assertRegex(text, rf"why: rank 1 \(process {pids[1]} on [^)]+\) has .*it is stopped .*ranks 0, 2 wait since")
        file = pathlib.Path(re.search(r"what each rank did: (\S+)", text)[1])
        self.assertEqual(file.parent, self.run_directory("timeout"))
        report = json.loads(file.read_text())
        self.assertEqual(report["ranks"], [1])
        self.assertEqual([flight["rank"] for flight in report["flights"]], [0, 1, 2])
        for rank in range(3):  # what Perfetto shows
            events = [event for event in report["traceEvents"] if event["pid"] == rank and event["ph"] == "X"]
            self.assertGreater(len(events), 100)
            self.assertTrue(all(event["dur"] >= 0 for event in events))
            # Rank 1 may have been stopped between two pieces of work.
            self.assertTrue(rank == 1 or any(event["args"].get("goes_on") for event in events))

    def test_sigquit_asks_and_training_goes_on(self):
        process, log, pids = self.start("asked", 2)
        os.kill(pids[1], signal.SIGQUIT)
        fsdp_cli.wait_for(process, log, lambda: "[rank 1] warning: why " in log.read_text() or "why  " in log.read_text())
        self.assertRegex(log.read_text(), r"why +no rank has waited")
        fsdp_cli.wait_for(process, log, lambda: list(self.run_directory("asked").glob("stuck-*.json")))
        os.kill(pids[0], signal.SIGSTOP)
        self.wait_for_verdict("asked")
        os.kill(pids[1], signal.SIGQUIT)
        fsdp_cli.wait_for(process, log, lambda: f"why       rank 0 (process {pids[0]} on" in log.read_text())
        os.kill(pids[0], signal.SIGCONT)
        self.assert_goes_on("asked", process, log)

    def test_a_killed_rank_leaves_its_record(self):
        process, log, pids = self.start("killed", 2, "--collective-timeout", 60)
        os.kill(pids[1], signal.SIGKILL)
        self.assertNotEqual(process.wait(60), 0)
        text = self.why("killed", 3).out
        self.assertRegex(text, rf"rank 1 \(process {pids[1]} on [^)]+\)[^;]*: its process has ended")

    def memory_group(self):
        """Makes a control group for memory. Returns its folder and its files for use and limit."""
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                folder, files = pathlib.Path(f"/sys/fs/cgroup/memory{path}/fsdp-test-{os.getpid()}"), ("memory.usage_in_bytes", "memory.limit_in_bytes")
            elif not controllers:
                folder, files = pathlib.Path(f"/sys/fs/cgroup{path}/fsdp-test-{os.getpid()}"), ("memory.current", "memory.max")
            else:
                continue
            try:
                folder.mkdir()
            except OSError:
                continue
            self.addCleanup(folder.rmdir)
            if (folder / files[1]).exists():
                return folder, *(folder / name for name in files)
        self.skipTest("no control group for memory can be made here")

    def test_a_rank_that_the_kernel_kills_for_memory(self):
        group, use, limit = self.memory_group()
        programs = fsdp_cli.wrap(self.folder / "programs", "fsdp-finetune", f'if [ {fsdp_cli.SHELL_RANK} = 1 ]; then echo $$ > {group}/cgroup.procs; fi')
        excluded = self.folder / "excluded-grown"
        process, log, pids = self.start("grown", 2, "--exclude-file", excluded, programs=programs)
        for swap in ("memory.swap.max", "memory.swappiness"):
            if (group / swap).exists():
                (group / swap).write_text("0")
        limit.write_text(str(int(use.read_text()) + (16 << 20)))
        # Another process of the group takes what is left, and pages of files that the kernel gives up. The kernel spares it.
        eater = subprocess.Popen(["/bin/sh", "-c", f"echo $$ > {group}/cgroup.procs; echo -1000 > /proc/$$/oom_score_adj; "
                                  "exec dd if=/dev/zero of=/dev/null bs=1G count=1"], stderr=subprocess.DEVNULL)
        self.addCleanup(eater.wait, 60)
        self.addCleanup(eater.kill)
        self.assertNotEqual(process.wait(60), 0)
        self.assertRegex(self.why("grown", 3).out, rf"rank 1 \(process {pids[1]} on [^)]+\)[^;]*: the kernel has killed it, since its memory was used up")
        self.assertFalse(excluded.exists(), log.read_text())  # it is not the node's fault

    def test_a_file_system_that_takes_nothing(self):
        disk, image = self.folder / "frozen", self.folder / "image"
        disk.mkdir()
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, disk]):
            if subprocess.run(command, capture_output=True, check=False).returncode:
                self.skipTest("no file system can be made and mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=False)
        self.runs, runs = disk / "runs", self.runs
        self.addCleanup(setattr, self, "runs", runs)
        process, log, pids = self.start("blocked", 2, "--log-every", 1)
        self.addCleanup(subprocess.run, ["fsfreeze", "-u", disk], check=False, capture_output=True)
        if subprocess.run(["fsfreeze", "-f", disk], check=False, capture_output=True).returncode:
            self.skipTest("no file system can be frozen here")
        text = self.wait_for_verdict("blocked")
        self.assertRegex(text, rf"^rank 0 \(process {pids[0]} on .*the kernel does not let it go on: .* {re.escape(str(disk))}/runs/blocked/")
        subprocess.run(["fsfreeze", "-u", disk], check=True)
        self.assert_goes_on("blocked", process, log)

    def test_a_run_whose_folder_does_not_answer(self):
        shim = os.environ.get("TEST_SLOW_FILES")
        if not shim:
            self.skipTest("tests/support/slow_files.c was not built")
        process, log, pids = self.start("gone", 2)
        os.kill(pids[1], signal.SIGSTOP)
        self.wait_for_verdict("gone")
        # A look at the folder would take hours. The ranks of this node are known without it.
        result = fsdp_cli.run("fsdp-eval", ["--why", self.run_directory("gone")], within=["env"], limit_seconds=60, env={
            "LD_PRELOAD": shim, "TEST_SLOW_FILE": "/gone/status", "TEST_SLOW_MS": "9000000"})
        self.assertEqual(result.code, 3, str(result))
        self.assertRegex(result.out, rf"^rank 1 \(process {pids[1]} on [^)]+\) .*it is stopped .*rank 0 waits since")
        os.kill(pids[1], signal.SIGCONT)
        self.assert_goes_on("gone", process, log)

    def test_a_job_ends_whose_status_cannot_be_written(self):
        shim = os.environ.get("TEST_SLOW_FILES")
        if not shim:
            self.skipTest("tests/support/slow_files.c was not built")
        excluded = self.folder / "excluded-silent"
        # The first files are written; the next one takes hours.
        process, log, pids = self.start("silent", 2, "--collective-timeout", 3, "--exclude-file", excluded, env={
            "LD_PRELOAD": shim, "TEST_SLOW_FILE": "/silent/status/", "TEST_SLOW_MS": "9000000", "TEST_SLOW_AFTER": "4"})
        time.sleep(12)
        os.kill(pids[1], signal.SIGSTOP)
        self.assertNotEqual(process.wait(60), 0)
        self.assertRegex(log.read_text(), rf"why: rank 1 \(process {pids[1]} on [^)]+\) has .*it is stopped .*rank 0 waits since")
        self.assertEqual(excluded.read_text(), socket.gethostname() + "\n")

    def test_a_folder_that_is_no_run(self):
        self.assertIn("there is no such folder", self.why("missing", 4).err)

    def test_it_goes_alone(self):
        for more, words in ((("--data", self.val_data), "evaluates nothing: it goes without --data"), (("--runs", self.folder), "goes without --runs"),
                            (("--watch",), "--watch goes with --runs"), ((self.folder,), "it goes without checkpoint")):
            with self.subTest(words):
                self.assert_refused(self.why("missing", 2, *more), 2, words)


if __name__ == "__main__":
    fsdp_cli.main()
