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
