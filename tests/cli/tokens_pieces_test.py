"""fsdp-download tokens in pieces: processes of several hosts share one input, any of them may be killed at any time, and the
output has the bytes of one process. 12 kills; FSDP_ALL=1: 50."""

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import fsdp_cli
from tokens_cli import DATA, PROGRAM, TokensCase

KILLS = 50 if fsdp_cli.ALL else 12
PIECES = ["--pieces", "on", "--piece-size", "0.05", "--takeover-after", "1"]


def hosts():
    """Commands that start a process on a host of its own: with its own name, process ids and network. Empty: this one."""
    root = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    found = []
    for name in ("first", "second"):
        found.append(["unshare", *root, "--uts", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "sh", "-c", f'hostname {name} && exec "$@"', name])
    try:
        if all(subprocess.run([*host, "true"], capture_output=True, check=False).returncode == 0 for host in found):
            return found
    except FileNotFoundError:
        pass
    return [[], []]


class Pieces(TokensCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lines = (DATA / "chess" / "train.jsonl").read_text().splitlines()
        choice = random.Random(5)
        with open(cls.folder / "a.jsonl", "w", encoding="utf-8") as file:
            for i in range(6000):
                file.write(lines[choice.randrange(len(lines))] + ("\r\n" if i % 7 == 0 else "\n"))
                if i % 50 == 0:
                    file.write(" \n" if i % 100 == 0 else json.dumps({"text": "x" * choice.randrange(200), "more": 1}) + "\n")
        (cls.folder / "b.csv").write_text("text\n" + "".join(f'"one {i}\ntwo"\n' for i in range(50)))
        (cls.folder / "c.jsonl").write_text("\ufeff" + '{"text": ""}\n' + json.dumps({"text": "y" * 300000}))
        cls.inputs = [cls.folder / name for name in ("a.jsonl", "b.csv", "c.jsonl")]
        cls.one = {}

    def made_by_one(self, *layout):
        """The bytes that one process writes without pieces."""
        if layout not in self.one:
            output = self.folder / "one.h5"
            self.tokens(self.inputs, output, *layout, "--pieces", "off")
            self.one[layout] = output.read_bytes()
        return self.one[layout]

    def start(self, host, output, log, *more):
        command = fsdp_cli.command(PROGRAM, ["tokens", "--input", *self.inputs, "--tokenizer", "gpt2", "--output", output, *PIECES, "--threads", "1", *more], 0)
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen([*host, *command], stdout=file, stderr=file, env=fsdp_cli.environment(), start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        return process

    def finished(self, output):
        folder = output.parent / (output.name + ".parts")
        return {path.name: path.stat().st_mtime_ns for path in folder.glob("piece-*.json")} if folder.is_dir() else {}

    def test_every_layout_has_the_bytes_of_one_process(self):
        for number, layout in enumerate((["--documents"], ["--stream", "--seq-len", "64"], ["--documents", "--pack", "--seq-len", "300"],
                                         ["--stream", "--eos", "off"])):
            with self.subTest(layout=layout):
                output = self.folder / f"layout{number}.h5"
                self.tokens(self.inputs, output, *layout, *PIECES)
                self.assertEqual(output.read_bytes(), self.made_by_one(*layout))
                self.assertEqual([path.name[:5] for path in output.with_name(output.name + ".parts").iterdir()], ["done-"])

    def test_a_launcher_shares(self):
        output = self.folder / "launched.h5"
        result = self.tokens(self.inputs, output, "--documents", "--piece-size", "0.05", ranks=3)
        self.assertEqual(output.read_bytes(), self.made_by_one("--documents"))
        self.assertEqual(result.out.split(), [str(output)], "one process says where the result is")
        self.assertNotIn("pieces", self.tokens(self.inputs, self.folder / "alone.h5", "--documents").err)

    def test_tasks_of_an_array_share(self):
        output, env = self.folder / "array.h5", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "1"}
        more = ["--documents", "--piece-size", "0.05", "--json"]
        first = self.tokens(self.inputs, output, *more, env=env).json()
        self.assertEqual((first["pieces"], first["own_pieces"]), (first["pieces"], first["pieces"]))
        made = output.stat().st_mtime_ns
        late = self.tokens(self.inputs, output, *more, env=env)
        self.assertIn("nothing is left to do", late.err)
        self.assertEqual(output.stat().st_mtime_ns, made)
        self.tokens(self.inputs, output, *more, "--max-length", "5", env=env)
        self.assertNotEqual(output.stat().st_mtime_ns, made, "other options, another output")

    def test_killed_at_any_time(self):
        choice, places = random.Random(11), hosts()
        output, log = self.folder / "killed.h5", self.folder / "log"
        kills, runs = 0, 0
        while kills < KILLS:
            running = [self.start(places[i % 2], output, f"{log}{i}") for i in range(4)]
            runs += 1
            while kills < KILLS and any(process.poll() is None for process in running):
                time.sleep(choice.uniform(0.01, 0.25))
                victim = choice.randrange(4)
                if running[victim].poll() is not None:
                    continue
                before = self.finished(output)
                fsdp_cli.end_group(running[victim])
                running[victim].wait(30)
                kills += 1
                running[victim] = self.start(places[victim % 2], output, f"{log}{victim}")
                after = self.finished(output)
                if after and not list(output.with_name("killed.h5.parts").glob("done-*")):
                    self.assertEqual({name: after.get(name) for name in before}, before, "a finished piece is not done again")
            for i, process in enumerate(running):
                self.assertEqual(process.wait(90), 0, (self.folder / f"log{i}").read_text())
            self.assertEqual(output.read_bytes(), self.made_by_one())
            if kills < KILLS:
                output.unlink()
        fsdp_cli.say(f"{kills} kills in {runs} runs on {'two hosts' if places[0] else 'this host'}")
        left = sorted(path.name for path in output.with_name("killed.h5.parts").iterdir() if not path.name.startswith(".tmp."))
        self.assertEqual([name[:5] for name in left], ["done-"], left)
        self.assertEqual(self.temporary_files(), [], "a killed writer leaves nothing beside the output")

    def test_stopped(self):
        output = self.folder / "stopped.h5"
        process = self.start([], output, self.folder / "log")
        while len(self.finished(output)) < 3:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 85)
        said = (self.folder / "log").read_text()
        self.assertRegex(said, r"stopped by signal 15; \d+ of \d+ pieces are done and kept in .*stopped.h5.parts: the same command again")
        self.assertFalse(output.exists())
        kept = len(self.finished(output))
        result = self.tokens(self.inputs, output, *PIECES, "--json").json()
        self.assertEqual(result["own_pieces"], result["pieces"] - kept)
        self.assertEqual(output.read_bytes(), self.made_by_one())

    def test_a_bad_line_is_named_by_its_number_in_the_file(self):
        bad = self.folder / "bad.jsonl"
        lines = [json.dumps({"text": f"good {i}"}) for i in range(9000)]
        lines[10] = ""
        lines[7000] = '{"text": 5}'
        bad.write_text("\n".join(lines))
        alone = self.refused(bad, 4, "bad.jsonl: line 7001: 'text' holds a number")
        output = self.folder / "bad.h5"
        result = self.tokens(bad, output, *PIECES, "--documents", code=4)
        self.assertEqual(result.errors(), alone.errors())
        self.assertFalse(output.exists())
        lines[7000] = json.dumps({"text": "mended"})
        bad.write_text("\n".join(lines))
        said = self.tokens(bad, output, *PIECES, "--documents").err
        self.assertIn("files of other inputs or options, which may be removed", said)

    def test_the_report_is_the_same(self):
        """Places of copies and of samples without a target are those of the whole file."""
        pairs = self.folder / "pairs.jsonl"
        with open(pairs, "w", encoding="utf-8") as file:
            for i in range(3000):
                file.write(json.dumps({"prompt": f"q{i % 700}" * (60 if i % 501 == 500 else 1), "completion": f"a{i % 700}", "id": i}) + "\n")
        found = []
        for name, more in (("off", ["--pieces", "off"]), ("on", PIECES)):
            output, report = self.folder / f"report-{name}.h5", self.folder / f"report-{name}.json"
            result = self.tokens(pairs, output, "--max-length", 60, "--report", report, "--drop-duplicates", "--json", *more)
            result, report = result.json(), json.loads(report.read_text())
            for key in ("output", "seconds", "pieces", "own_pieces"):
                result.pop(key, None)
            found.append((result, report, output.read_bytes()))
        self.assertGreater(found[0][0]["skipped"], 0)
        self.assertIn("pairs.jsonl: line 501", found[0][0]["first_skipped"])
        self.assertEqual(found[0][0], found[1][0])
        self.assertEqual(found[0][1], found[1][1])
        self.assertEqual(found[0][2], found[1][2])

    def test_row_groups_of_parquet(self):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("pyarrow is not installed")
        table = pyarrow.table({"text": [f"row {i} " * (i % 40) for i in range(5000)], "id": list(range(5000))})
        pyarrow.parquet.write_table(table, self.folder / "rows.parquet", row_group_size=300)
        outputs = []
        for name, more in (("off", ["--pieces", "off"]), ("on", ["--pieces", "on", "--piece-size", "0.002"])):
            outputs.append(self.folder / f"parquet-{name}.h5")
            result = self.tokens(self.folder / "rows.parquet", outputs[-1], "--json", "--report", self.folder / f"parquet-{name}.json", *more).json()
        self.assertGreater(result["pieces"], 5)
        self.assertEqual(outputs[0].read_bytes(), outputs[1].read_bytes())
        self.assertEqual((self.folder / "parquet-on.json").read_text().replace("parquet-on", "parquet-off"), (self.folder / "parquet-off.json").read_text())

    def test_damaged_pieces(self):
        output = self.folder / "damaged.h5"
        process = self.start([], output, self.folder / "log")
        while len(self.finished(output)) < 4:
            time.sleep(0.005)
        process.kill()
        process.wait(30)
        notes = sorted(output.with_name("damaged.h5.parts").glob("piece-*.json"))
        ids = notes[0].with_suffix(".ids")
        content = bytearray(ids.read_bytes())
        content[len(content) // 2] ^= 1
        ids.write_bytes(content)
        notes[1].with_suffix(".ids").write_bytes(b"short")  # done again without a word: nothing of it is used
        notes[2].with_suffix(".ids").unlink()
        result = self.tokens(self.inputs, output, *PIECES, code=4)
        self.assert_refused(result, 4, ids.name, "is damaged: remove this file and the one that ends in .json, and run the same command again")
        ids.unlink()
        notes[3].write_text("{}")
        self.assert_refused(self.tokens(self.inputs, output, *PIECES, code=4), 4, notes[3].name, "is no note of a finished piece")
        notes[3].unlink()
        self.tokens(self.inputs, output, *PIECES)
        self.assertEqual(output.read_bytes(), self.made_by_one())

    def test_zeros_in_a_piece(self):
        """As a lost block leaves them."""
        output = self.folder / "zeros.h5"
        process = self.start([], output, self.folder / "log")
        while not self.finished(output):
            time.sleep(0.005)
        process.kill()
        process.wait(30)
        ids = next(output.with_name("zeros.h5.parts").glob("piece-*.json")).with_suffix(".ids")
        size = ids.stat().st_size
        ids.write_bytes(bytes(size))
        self.assert_refused(self.tokens(self.inputs, output, *PIECES, code=4), 4, ids.name, "is damaged")
        self.assertFalse(output.exists())

    def test_two_plans_on_one_output(self):
        """Neither takes the pieces of the other, and each ends with its output made; the last one's stays."""
        output = self.folder / "plans.h5"
        running = [self.start([], output, self.folder / f"log{i}", *more) for i, more in enumerate((["--stream"], ["--documents"], ["--max-length", "7"]))]
        for i, process in enumerate(running):
            self.assertEqual(process.wait(90), 0, (self.folder / f"log{i}").read_text())
        made = [self.made_by_one(*more) for more in (["--stream"], ["--documents"], ["--max-length", "7"])]
        self.assertIn(output.read_bytes(), made)

    def test_one_file_under_two_names(self):
        """The name decides how a file is read."""
        (self.folder / "x.csv").write_text("text\nhello world\nfoo bar\n")
        (self.folder / "x.txt").symlink_to("x.csv")
        both = [self.folder / "x.csv", self.folder / "x.txt"]
        outputs = [self.folder / f"names-{how}.h5" for how in ("off", "on")]
        for output, more in zip(outputs, (["--pieces", "off"], PIECES)):
            self.tokens(both, output, "--documents", *more)
        self.assertEqual(outputs[0].read_bytes(), outputs[1].read_bytes())

    def test_a_report_is_made_again(self):
        output, report = self.folder / "again.h5", self.folder / "again.json"
        more = ["--report", report, *PIECES]
        self.tokens(self.inputs, output, *more)
        first = report.read_text()
        self.assertIn("nothing is left to do", self.tokens(self.inputs, output, *more).err)
        report.unlink()
        report.with_suffix(".svg").unlink()
        self.tokens(self.inputs, output, *more)
        self.assertEqual(report.read_text(), first)
        report.write_text(first + "\n")  # another one
        self.tokens(self.inputs, output, *more)
        self.assertEqual(report.read_text(), first)

    def test_files_of_the_user_stay(self):
        output = self.folder / "mine.h5"
        folder = output.with_name("mine.h5.parts")
        mine = [folder / "done-work" / "a", folder / "tmp.notes", folder / "piece-of-mine.ids", folder / "done-1.json"]
        for path in mine:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        self.tokens(self.inputs, output, *PIECES)
        for path in mine:
            self.assertEqual(path.read_text(), "mine")

    def test_odd_names(self):
        """Names of files that are not UTF-8, with line ends; very many keys that nothing reads."""
        odd = pathlib.Path(os.fsdecode(os.fsencode(self.folder) + b"/l\xe9\nb.jsonl"))
        odd.write_text("".join(json.dumps({"text": f"a {i}", f"key_number_{i:08}_x": 1}) + "\n" for i in range(3000)))
        reports = []
        for how, more in (("off", ["--pieces", "off"]), ("on", PIECES)):
            output = self.folder / f"odd-{how}.h5"
            self.tokens(odd, output, "--report", self.folder / f"odd-{how}.json", *more)
            reports.append((output.read_bytes(), (self.folder / f"odd-{how}.json").read_text()))
        self.assertEqual(reports[0], reports[1])

    def test_a_stopped_writer_that_was_taken_over(self):
        """A process that sleeps while it writes, as in a job that is suspended, finds that another has written."""
        output, log = self.folder / "slept.h5", self.folder / "log"
        process = self.start([], output, log)
        folder = output.with_name("slept.h5.parts")
        while not list(folder.glob("join-*.claim")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        if process.poll() is None and not output.exists():
            self.tokens(self.inputs, output, *PIECES)
            made = output.stat().st_mtime_ns
            process.send_signal(signal.SIGCONT)
            self.assertEqual(process.wait(30), 0, log.read_text())
            self.assertEqual(output.stat().st_mtime_ns, made)
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(30), 0, log.read_text())
        self.assertEqual(output.read_bytes(), self.made_by_one())

    def test_what_is_refused(self):
        for output, words, code in ((self.folder, "is a directory", 2), (self.folder / "no" / "x.h5", "there is no directory", 1)):
            with self.subTest(output=output):
                self.assert_refused(self.tokens(self.inputs, output, *PIECES, code=code), code, words)
                self.assertFalse((self.folder / "no").exists())
        bad = self.folder / "forms.jsonl"
        for odd in ({"messages": [{"role": "user", "content": "q"}]}, {"prompt": "p", "completion": "c"}):
            lines = [json.dumps({"text": f"good {i}"}) for i in range(4000)]
            lines[3000] = json.dumps(odd)
            bad.write_text("\n".join(lines))
            alone = self.tokens(bad, self.folder / "forms.h5", "--documents", "--pieces", "off", code=4)
            for size in ("0.01", "0.02", "0.03"):
                self.assertEqual(self.tokens(bad, self.folder / "forms.h5", "--documents", "--pieces", "on", "--piece-size", size, code=4).errors(), alone.errors())

        self.assert_refused(self.tokens(self.inputs, self.folder / "few.h5", *PIECES, "--max-rows", 5, code=2), 2, "--max-rows reads the first texts")


if __name__ == "__main__":
    fsdp_cli.main()
