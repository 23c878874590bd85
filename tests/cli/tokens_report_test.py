"""fsdp-download tokens --report: what is told about lengths, copies and leaks, and what --drop-duplicates leaves out."""

import json
import xml.etree.ElementTree

import fsdp_cli
import h5py


class Report(fsdp_cli.Case):
    def write(self, name, texts):
        path = self.folder / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    def tokens(self, *arguments, code=0):
        result = fsdp_cli.run("fsdp-download", ["tokens", "--tokenizer", "gpt2", *arguments])
        self.assertEqual(result.code, code, str(result))
        return result

    def documents(self, path):
        with h5py.File(path) as file:
            offsets = file["offsets"][:]
            return [list(file["tokens"][begin:end]) for begin, end in zip(offsets, offsets[1:])]

    def test_report_and_what_is_left_out(self):
        a = self.write("a.jsonl", ["One.", "Two, and more of it.", "", "One.", "Three"])
        b = self.write("b.jsonl", ["Two, and more of it.", "Four", "Five is held out"])
        held_out = self.write("validation.jsonl", ["Five is held out", "Six"])
        validation, whole, report = self.folder / "validation.h5", self.folder / "whole.h5", self.folder / "report.json"
        self.tokens("--input", held_out, "--output", validation)
        result = self.tokens("--input", a, b, "--output", whole, "--report", report, "--against", validation)
        found = json.loads(report.read_text())
        self.assertEqual((found["documents"], found["empty"], found["cut"]), (8, 1, 0))
        self.assertEqual((found["copies"]["inside"], found["copies"]["between"], found["copies"]["dropped"]), (1, 1, 0))
        self.assertEqual({(e["document"], e["first"]) for e in found["copies"]["examples"]},
                         {(f"{a}: line 4", f"{a}: line 1"), (f"{b}: line 1", f"{a}: line 2")})
        self.assertEqual(found["against"][0]["found"], 1)
        self.assertEqual(found["against"][0]["examples"][0]["document"], f"{b}: line 3")
        documents = self.documents(whole)
        self.assertEqual(sorted(map(len, documents))[4], found["lengths"]["p50"] if len(documents) % 2 else sorted(map(len, documents))[4])
        self.assertEqual(sum(bar["documents"] for bar in found["histogram"]), 8)
        xml.etree.ElementTree.parse(report.with_suffix(".svg"))
        for words in (f"2 documents have the ids of an earlier one, 1 in the same file and 1 in another: {a}: line 4 is {a}: line 1",
                      f"1 of 8 documents is in {validation}: {b}: line 3", "lengths   0 to "):
            self.assertIn(words, result.err)
        # Nothing is removed without being asked for.
        plain = self.folder / "plain.h5"
        self.tokens("--input", a, b, "--output", plain)
        self.assertEqual(self.documents(plain), documents)
        dropped = self.folder / "dropped.h5"
        result = self.tokens("--input", a, b, "--output", dropped, "--against", validation, "--drop-duplicates", "--json")
        self.assertEqual(self.documents(dropped), [documents[i] for i in (0, 1, 2, 4, 6)])
        self.assertEqual(result.json()["report"]["copies"]["dropped"], 3)
        self.assertEqual(result.json()["documents"], 5)
        self.assertFalse([p.name for p in self.folder.iterdir() if p.name.startswith(".")])

    def test_nothing_of_the_users_is_replaced(self):
        texts = self.write("in.jsonl", ["One.", "Two."])
        before = texts.read_text()
        output, picture = self.folder / "out.h5", self.folder / "mine.svg"
        picture.write_text("mine")
        other = self.folder / "other.json"
        other.write_text("{}")
        (self.folder / "in.json").write_text(before)
        for report in (texts, output, self.folder / "r.svg", self.folder / "nosuch" / "r.json", self.folder, other, picture.with_suffix(".json")):
            result = self.tokens("--input", texts, "--output", output, "--report", report, code=2)
            self.assertIn(f"--report {report}", result.err)
            self.assertFalse(output.exists())
        self.tokens("--input", self.folder / "in.json", "--output", output, "--report", self.folder / "in.json", code=2)
        self.assertEqual((texts.read_text(), picture.read_text(), other.read_text()), (before, "mine", "{}"))
        for _ in range(2):  # an older report is replaced
            self.tokens("--input", texts, "--output", output, "--report", self.folder / "r.json")

    def test_plain_texts_are_files_of_their_own(self):
        for name, text in ("part1.txt", "The same."), ("part2.txt", "The same."), ("part3.txt", "Another."):
            (self.folder / name).write_text(text)
        parts = [self.folder / f"part{i}.txt" for i in (1, 2, 3)]
        result = self.tokens("--input", *parts, "--output", self.folder / "parts.h5", "--documents", "--report", self.folder / "parts.json", "--json")
        found = result.json()["report"]
        self.assertEqual((found["copies"]["inside"], found["copies"]["between"]), (0, 1))
        self.assertEqual([source["file"] for source in found["sources"]], [str(part) for part in parts])

    def test_rows_leave_copies_out_too_and_what_is_refused(self):
        texts = self.write("t.jsonl", ["A sentence that is here twice."] * 3 + ["Another one, and a longer one."])
        for more, documents in ([], 4), (["--drop-duplicates"], 2):
            result = self.tokens("--input", texts, "--output", self.folder / "rows.h5", "--stream", "--seq-len", 4, "--json", *more)
            self.assertEqual(result.json()["documents"], documents)
        result = self.tokens("--input", texts, "--output", self.folder / "x.h5", "--against", self.folder / "rows.h5", code=4)
        self.assertIn("holds rows", result.err)
        twice = self.write("twice.jsonl", ["Six"])
        self.tokens("--input", twice, "--output", self.folder / "six.h5")
        result = self.tokens("--input", twice, "--output", self.folder / "none.h5", "--against", self.folder / "six.h5", "--drop-duplicates", code=4)
        self.assertIn("are copies of others", result.err)
        self.assertFalse((self.folder / "none.h5").exists())


if __name__ == "__main__":
    fsdp_cli.main()
