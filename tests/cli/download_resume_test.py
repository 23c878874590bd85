"""fsdp-download killed, stopped, resumed, and run twice at once: no verified byte is requested again, and the files on disk
equal the hub's."""

import random
import shutil
import signal
import subprocess
import threading
import time

import fsdp_cli
from download_cli import MIB, NAME, DownloadCase, random_bytes
from hub_server import Action, Repo

NO_FLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
int flock(int fd, int operation) { (void)fd; (void)operation; errno = ENOSYS; return -1; }
int lockf(int fd, int command, off_t length) { (void)fd; (void)command; (void)length; errno = ENOLCK; return -1; }
static int locked(int command) { return command == F_SETLK || command == F_SETLKW || command == F_GETLK; }
#define FORWARD(name)                                                    \
  int name(int fd, int command, ...) {                                   \
    va_list list; va_start(list, command); void* argument = va_arg(list, void*); va_end(list); \
    if (locked(command)) { errno = ENOLCK; return -1; }                  \
    int (*next)(int, int, ...) = dlsym(RTLD_NEXT, #name);                \
    return next(fd, command, argument);                                  \
  }
FORWARD(fcntl)
FORWARD(fcntl64)
"""


def overlap(ranges, asked):
    """Returns the number of bytes of `asked` that lie in `ranges`."""
    points = sorted({p for r in [*ranges, asked] for p in r})
    return sum(b - a for a, b in zip(points, points[1:])
               if asked[0] <= a < asked[1] and any(begin <= a < end for begin, end in ranges))


class ResumeTest(DownloadCase):
    def serve_large(self, size, **how):
        self.serve({("model", NAME): Repo({"config.json": b"{}", "model.safetensors": random_bytes(size, 3)})}, **how)

    def asked_ranges(self, since=0):
        size = len(self.repo.files["model.safetensors"])
        return [(r.first, r.range[1] if r.range else size)
                for r in self.hub.requests("model.safetensors")[since:] if r.status]

    def test_killed_at_ten_random_points(self):
        """Kills the download at random bytes, with several connections; each new process requests only bytes that no journal records."""
        size = 48 * MIB + 12345
        self.serve_large(size, bytes_per_second=24 * MIB)
        draw = random.Random(20)
        points = sorted(draw.sample(range(MIB, size - 6 * MIB), 10))
        arguments = ["--jobs", "3", "--part-size", "4MiB"]
        kills = 0
        for point in points:
            seen = len(self.hub.requests("model.safetensors"))
            before = self.verified_ranges("model.safetensors")
            have = sum(end - begin for begin, end in before)
            process = self.start(*arguments)
            start = self.hub.served("model.safetensors")
            self.until(lambda: have + self.hub.served("model.safetensors") - start >= point or process.poll() is not None)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += process.returncode == -signal.SIGKILL
            for asked in self.asked_ranges(seen):
                self.assertEqual(overlap(before, asked), 0, f"{asked} was asked for again; verified were {before}")
        self.assertEqual(kills, 10)
        before = self.verified_ranges("model.safetensors")
        self.assertGreater(sum(end - begin for begin, end in before), 0)
        seen = len(self.hub.requests("model.safetensors"))
        report = self.report(*arguments)
        for asked in self.asked_ranges(seen):
            self.assertEqual(overlap(before, asked), 0)
        self.assertEqual(report["bytes_received"] + sum(end - begin for begin, end in before) - size,
                         0 if self.done_before(report, "config.json") else 2)
        self.assert_snapshot(["config.json", "model.safetensors"])
        self.assertFalse(self.partial("model.safetensors").exists())
        waste = self.hub.served("model.safetensors") - size
        fsdp_cli.say(f"10 kills: {waste} of {size} bytes were sent more than once")
        # Per connection a kill can lose 1 MiB that was not yet journalled, and the contents of socket buffers.
        self.assertLess(waste, 10 * 3 * 4 * MIB)
        self.download("--verify")

    @staticmethod
    def done_before(report, path):
        return next(f["was_there"] for f in report["files"] if f["path"] == path)

    def test_stop_signals_leave_a_state_to_go_on_with(self):
        size = 12 * MIB
        self.serve_large(size, bytes_per_second=8 * MIB)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            start = self.hub.served("model.safetensors")
            process = self.start("--jobs", "2", "--part-size", "1MiB")
            self.until(lambda: self.hub.served("model.safetensors") > start + 2 * MIB)
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
            self.assertEqual((process.returncode, out), (fsdp_cli.STOPPED_EARLY, ""), err)
            self.assertIn("run the same command to go on", err)
        before = self.verified_ranges("model.safetensors")
        report = self.report()
        self.assertEqual(sum(end - begin for begin, end in before) + report["bytes_received"] + 2 * self.done_before(
            report, "config.json"), size + 2)
        self.assert_snapshot(["config.json", "model.safetensors"])

    def interrupted(self, size=6 * MIB, at=4 * MIB, env=None):
        """Starts a download and kills it when `at` bytes are journalled."""
        rate = 4 * MIB
        while True:
            self.serve_large(size, bytes_per_second=rate)
            process = self.start("--jobs", "1", env=env)
            self.until(lambda p=process: p.poll() is not None or sum(e - b for b, e in self.verified_ranges("model.safetensors")) >= at)
            if process.poll() is None:
                process.kill()
                process.wait()
                return self.verified_ranges("model.safetensors")
            # On a busy machine it may be done before this process looks.
            shutil.rmtree(self.cache)
            rate //= 2

    def part(self):
        return next(self.partial("model.safetensors").glob("part.*"))

    def test_bytes_damaged_on_disk_are_fetched_again_and_only_they(self):
        before = self.interrupted()
        with open(self.part() / "data", "r+b") as data:
            data.seek(MIB + 77)
            data.write(b"damaged")
        after = self.verified_ranges("model.safetensors")
        self.assertEqual(len(before) - len(after), 1)
        seen = len(self.hub.requests("model.safetensors"))
        self.download()
        self.assertTrue(any(asked[0] <= MIB + 77 < asked[1] for asked in self.asked_ranges(seen)))
        self.assertTrue(all(overlap(after, asked) == 0 for asked in self.asked_ranges(seen)))
        self.assert_snapshot(["config.json", "model.safetensors"])

    def test_a_torn_or_foreign_journal_does_no_harm(self):
        for damage in (b"", b"fsdp-partial 1 other 5\n0 5 00000000\n", b"\x00\xff" * 99):
            with self.subTest(damage=damage):
                shutil.rmtree(self.cache, ignore_errors=True)
                self.interrupted()
                (self.part() / "journal").write_bytes(damage)
                self.download()
                self.assert_snapshot(["config.json", "model.safetensors"])
        shutil.rmtree(self.cache)
        self.interrupted()
        with open(self.part() / "journal", "ab") as journal:
            journal.write(b"5242880 6291456 0")
        kept = self.verified_ranges("model.safetensors")
        seen = len(self.hub.requests("model.safetensors"))
        self.download()
        self.assertTrue(all(overlap(kept, asked) == 0 for asked in self.asked_ranges(seen)))
        self.assert_snapshot(["config.json", "model.safetensors"])

    def test_data_that_is_shorter_than_its_journal(self):
        self.interrupted()
        with open(self.part() / "data", "r+b") as data:
            data.truncate(MIB + 5)
        self.download()
        self.assert_snapshot(["config.json", "model.safetensors"])

    # --- several processes -------------------------------------------------------------------------------------------
    def together(self, count, env=None):
        processes = [self.start("--jobs", "2", "--part-size", "1MiB", env=env) for _ in range(count)]
        for process in processes:
            out, err = process.communicate(timeout=90)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(out.strip(), str(self.snapshot()))
        self.assert_snapshot(["config.json", "model.safetensors"])
        self.assertFalse(self.partial("model.safetensors").exists())

    def test_several_at_once_share_the_work(self):
        self.serve_large(8 * MIB, bytes_per_second=8 * MIB)
        self.together(3)
        self.assertEqual(self.hub.served("model.safetensors"), 8 * MIB)

    def test_several_at_once_without_any_lock(self):
        if shutil.which("cc") is None:
            self.skipTest("no compiler to build a library that disables locks")
        source, library = self.folder / "no_flock.c", self.folder / "no_flock.so"
        source.write_text(NO_FLOCK)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        probe = ["python3", "-c", "import fcntl, sys\ntry: fcntl.flock(open('/dev/null'), fcntl.LOCK_EX)\nexcept OSError: sys.exit(9)"]
        self.assertEqual(subprocess.run(probe, env={"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"}).returncode, 9)
        self.serve_large(8 * MIB, bytes_per_second=8 * MIB)
        self.together(3, env={"LD_PRELOAD": str(library)})

    def test_the_other_takes_over_at_once_when_one_is_killed(self):
        self.serve_large(10 * MIB, bytes_per_second=6 * MIB)
        first = self.start("--jobs", "1")
        self.until(lambda: self.hub.served("model.safetensors") > 2 * MIB)
        second = self.start("--jobs", "1")
        self.until(lambda: sum(e - b for b, e in self.verified_ranges("model.safetensors")) >= 5 * MIB)
        first.kill()
        first.wait()
        before, seen = self.verified_ranges("model.safetensors"), len(self.hub.requests("model.safetensors"))
        _, err = second.communicate(timeout=60)
        self.assertEqual(second.returncode, 0, err)
        self.assertIn(f"process {first.pid} on ", err)
        self.assertTrue(all(overlap(before, asked) == 0 for asked in self.asked_ranges(seen)))
        self.assert_snapshot(["config.json", "model.safetensors"])

    def test_one_that_froze_and_wakes_up_harms_nobody(self):
        """A process that is suspended for longer than --takeover-after counts as dead, although it is not."""
        self.serve_large(10 * MIB, bytes_per_second=6 * MIB)
        frozen = self.start("--jobs", "1", "--takeover-after", "1")
        self.until(lambda: sum(e - b for b, e in self.verified_ranges("model.safetensors")) >= 3 * MIB)
        frozen.send_signal(signal.SIGSTOP)
        self.addCleanup(frozen.send_signal, signal.SIGCONT)
        before, seen = self.verified_ranges("model.safetensors"), len(self.hub.requests("model.safetensors"))
        # The suspended process keeps its part; the other process copies the bytes to a part of its own.
        other = self.start("--jobs", "1", "--takeover-after", "1")
        self.until(lambda: len(self.hub.requests("model.safetensors")) > seen, what="the takeover")
        frozen.send_signal(signal.SIGCONT)
        for process in (other, frozen):
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
        asked = [(r.first, r.range[1]) for r in self.hub.requests("model.safetensors")[seen:seen + 1]]
        self.assertEqual([overlap(before, one) for one in asked], [0])
        self.assert_snapshot(["config.json", "model.safetensors"])
        self.download("--verify")

    def test_a_claim_of_another_host_is_respected_and_then_taken_over(self):
        self.interrupted()
        before = self.verified_ranges("model.safetensors")
        claim = max(self.partial("model.safetensors").glob("claim.*"))
        text = claim.read_text()
        claim.write_text(text.replace('"boot_id":"', '"boot_id":"other'))
        beating = threading.Event()

        def beat():
            while not beating.wait(0.1):
                claim.touch()
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        seen = len(self.hub.requests("model.safetensors"))
        process = self.start("--takeover-after", "1.5")
        time.sleep(4)
        self.assertIsNone(process.poll())
        self.assertEqual(len(self.hub.requests("model.safetensors")), seen)
        beating.set()
        thread.join()
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertTrue(all(overlap(before, asked) == 0 for asked in self.asked_ranges(seen)))
        self.assert_snapshot(["config.json", "model.safetensors"])

    def test_random_faults_together(self):
        """Cuts, errors and kills during one download, which must still succeed."""
        self.serve_large(16 * MIB, bytes_per_second=16 * MIB)
        draw = random.Random(7)
        lock = threading.Lock()

        def fault(request):
            with lock:
                kind = draw.choice([None, None, "cut", "503", "range"])
            if request.host != "storage" or kind is None:
                return None
            return {"cut": Action(cut_after=draw.randrange(1, MIB)), "503": Action(status=503),
                    "range": Action(headers={"Content-Range": "bytes 1-2/3"})}[kind]
        self.hub.faults.append(fault)
        for _ in range(3):
            process = self.start("--jobs", "4", "--part-size", "1MiB", "--retries", "50")
            time.sleep(0.4)
            process.kill()
            process.wait()
        self.download("--jobs", "4", "--part-size", "1MiB", "--retries", "50")
        self.assert_snapshot(["config.json", "model.safetensors"])


if __name__ == "__main__":
    fsdp_cli.main()
