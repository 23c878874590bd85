"""fsdp-download tokens: JSON Lines, CSV and text to packed rows or documents; options, messages, exit codes."""

import gzip
import os
import pty
import shutil
import subprocess

import h5py

import fsdp_cli
from tokens_cli import DATA, PROGRAM, TokensCase, documents, read, write_jsonl


class Output(TokensCase):
    def test_the_shipped_shakespeare_files(self):
        for split in ("train", "validation", "test"):
            with self.subTest(split):
                output = self.folder / f"{split}-new.h5"
                result = self.tokens(DATA / "shakespeare" / f"{split}.csv", output, "--stream")
                self.assertEqual(result.out, f"{output}\n")
                self.assert_same(output, DATA / "shakespeare" / f"{split}.h5")
                with h5py.File(output) as file:
                    self.assertIsNone(file["input_ids"].chunks)
                    self.assertEqual(dict(file.attrs), {
                        "tokenizer": "gpt2", "tokenizer_description": "GPT-2, 50257 ids", "vocab_size": 50257,
                        "seq_len": 256, "source_files": str(DATA / "shakespeare" / f"{split}.csv")})

    def test_rows_train_a_model(self):
        output = self.folder / "rows.h5"
        self.tokens(DATA / "shakespeare" / "test.csv", output, "--seq-len", 33)
        self.train("from_tokens", "--train-data", output, "--vocab-size", 50257, "--max-steps", 2)

    def test_report(self):
        texts = ["To be, or not to be", "", "that is the question"]
        source = write_jsonl(self.folder / "three.jsonl", texts)
        output = self.folder / "three.h5"
        report = self.tokens(source, output, "--documents", "--json").json()
        seconds = report.pop("seconds")
        self.assertGreater(seconds, 0)
        self.assertEqual(report, {
            "ignored": {},
            "output": str(output), "layout": "documents", "inputs": [str(source)], "tokenizer": "gpt2",
            "tokenizer_description": "GPT-2, 50257 ids", "vocab_size": 50257, "documents": 3, "empty_documents": 1,
            "tokens": 11})
        self.assertEqual(documents(output), [[2514, 307, 11, 393, 407, 284, 307], [], [5562, 318, 262, 1808]])
        with h5py.File(output) as file:
            self.assertEqual((file["tokens"].dtype, file["offsets"].dtype), ("uint16", "int64"))
        first = [[2514, 307, 11], [393, 407, 284]]
        for options, rows, marks in ((["--eos", "off"], first, 0), ([], first + [[307, 50256, 5562]], 1), (["--eos", "on"], first + [[307, 50256, 5562]], 1)):
            with self.subTest(options):
                packed = self.tokens(source, output, "--pack", "--seq-len", 3, "--json", *options).json()
                self.assertEqual([packed[k] for k in ("layout", "seq_len", "rows", "tokens", "dropped_tokens", "end_marks")],
                                 ["rows", 3, len(rows), 11 + marks, 11 + marks - 3 * len(rows), marks])
                self.assertEqual(read(output)["input_ids"].tolist(), rows)

    def test_all_formats_hold_the_same_texts(self):
        texts = ["one, two", 'a "quoted"\nline', "", "tab\tand é 😀"]
        expected = self.folder / "expected.h5"
        self.tokens(write_jsonl(self.folder / "f.jsonl", texts), expected, "--documents")
        quoted = ['"' + t.replace('"', '""') + '"' for t in texts]
        (self.folder / "f.csv").write_text("id,text\n" + "".join(f"{i},{t}\n" for i, t in enumerate(quoted)))
        (self.folder / "f.tsv").write_text("content\tid\r\n" + "".join(f"{t}\t{i}\r\n" for i, t in enumerate(quoted)))
        (self.folder / "f.ndjson").write_text("".join('{"moves": ["' + t.replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"]}\n\n' for t in texts))
        for name, options in (("f.csv", []), ("f.tsv", ["--field", "content"]), ("f.ndjson", ["--field", "moves"])):
            with self.subTest(name):
                self.tokens(self.folder / name, self.folder / "other.h5", "--documents", *options)
                self.assert_same(self.folder / "other.h5", expected)
        parts = [self.folder / f"{i}.txt" for i in (0, 1, 3)]
        for part, text in zip(parts, (texts[0], texts[1], texts[3])):
            part.write_text(text)
        self.tokens(parts, self.folder / "other.h5", "--documents")
        self.assertEqual(documents(self.folder / "other.h5"), [ids for ids in documents(expected) if ids])

    def test_directories_several_inputs_and_max_rows(self):
        (self.folder / "set" / "b").mkdir(parents=True)
        write_jsonl(self.folder / "set" / "b" / "2.jsonl", ["b"] * 3)
        write_jsonl(self.folder / "set" / "1.jsonl", ["a"] * 3)
        write_jsonl(self.folder / "3.jsonl", ["c"] * 3)
        output = self.folder / "several.h5"
        self.tokens(self.folder / "set", output, "--documents", "--input", self.folder / "3.jsonl", "--max-rows", 7)
        self.assertEqual(documents(output), [[64]] * 3 + [[65]] * 3 + [[66]])

    def test_compressed_files(self):
        plain = write_jsonl(self.folder / "f.jsonl", [f"text {i} " * 50 for i in range(2000)])
        self.tokens(plain, self.folder / "plain.h5", "--documents")
        content = plain.read_bytes()
        packed = {"f.jsonl.gz": gzip.compress(content[:5000]) + gzip.compress(content[5000:]) + bytes(100), "f.JSON.GZ": gzip.compress(content)}
        if shutil.which("zstd"):
            packed["f.jsonl.zst"] = subprocess.run(["zstd", "-c"], input=content, capture_output=True, check=True).stdout
        (self.folder / "packed").mkdir()
        for name, data in packed.items():
            with self.subTest(name):
                path = self.folder / "packed" / name
                path.write_bytes(data)
                for source in (path, path.parent):
                    self.tokens(source, self.folder / "packed.h5", "--documents")
                    self.assertEqual(documents(self.folder / "packed.h5"), documents(self.folder / "plain.h5"))
                path.unlink()

    def test_every_file_that_is_left_out_is_named(self):
        mixed = self.folder / "mixed"
        mixed.mkdir()
        write_jsonl(mixed / "a.jsonl", ["a"])
        names = [f"a-longer-name-of-a-note-{i:03}.txt" for i in range(60)]
        for name in names:
            (mixed / name).write_text("b")
        result = self.tokens(mixed, self.folder / "mixed.h5", "--documents")
        for name in names:
            self.assertIn(name, result.err)

    def test_threads_do_not_matter(self):
        outputs = [self.folder / f"threads{n}.h5" for n in (1, 3, 7)]
        for n, output in zip((1, 3, 7), outputs):
            self.tokens(DATA / "chess" / "train.jsonl", output, "--documents", "--threads", n)
        self.assertEqual(outputs[0].read_bytes(), outputs[1].read_bytes())
        self.assertEqual(outputs[0].read_bytes(), outputs[2].read_bytes())

    def test_the_kind_of_file_decides_the_layout(self):
        plain, lines = self.folder / "kind.txt", write_jsonl(self.folder / "kind.jsonl", ["to be or not to be " * 30] * 3)
        plain.write_text("to be or not to be " * 60)
        output = self.folder / "kind.h5"
        for inputs, more, layout in (([plain, plain], [], "rows"), (lines, [], "documents"), (plain, ["--documents"], "documents"),
                                     (plain, ["--max-length", 5], "documents"), (lines, ["--stream"], "rows"), (lines, ["--pack"], "rows"),
                                     (lines, ["--seq-len", 9], "rows"), ([plain, lines], ["--stream"], "rows")):
            with self.subTest(more, inputs=inputs):
                self.assertEqual(self.tokens(inputs, output, "--json", *more).json()["layout"], layout)
        self.refused([plain, lines], 2, "kind.jsonl: is JSON Lines, and", "kind.txt is plain text", "give --stream or --documents", options=())
        self.refused(plain, 2, "--stream", "--documents", options=("--stream", "--documents"))

    def test_messages(self):
        result = self.tokens(DATA / "shakespeare" / "test.csv", self.folder / "m.h5", "--pack")
        self.assertRegex(result.err, r"1 document, [\d,]+ tokens, 70 rows of 256, [\d,]+ tokens at the end left out; .*m\.h5 written in ")
        self.assertEqual(self.tokens(DATA / "shakespeare" / "test.csv", self.folder / "m.h5", "--quiet").err, "")

    def test_live_progress_on_a_terminal(self):
        line = (DATA / "chess" / "train.jsonl").read_text()
        source = self.folder / "long.jsonl"
        source.write_text(line * 25)  # 20 MB
        terminal, other = pty.openpty()
        process = subprocess.Popen(fsdp_cli.command(PROGRAM, ["tokens", "--input", source, "--tokenizer", "gpt2", "--output",
                                                              self.folder / "long.h5", "--threads", 1], 0),
                                   stdout=subprocess.DEVNULL, stderr=other, env=fsdp_cli.environment(), start_new_session=True)
        self.addCleanup(fsdp_cli.end_group, process)
        os.close(other)
        shown = b""
        while True:
            try:
                block = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            shown += block
        os.close(terminal)
        self.assertEqual(process.wait(30), 0, shown)
        self.assertRegex(shown.decode(), r"of 19 MiB, \d+ %, [\d,]+ documents, [\d,]+ tokens, [\d,]+/s, \d+:\d\d left\r\x1b\[K")


class Refusals(TokensCase):
    def test_usage(self):
        def refused(arguments, *words):
            self.assert_refused(fsdp_cli.run(PROGRAM, ["tokens", *arguments]), 2, *words)

        good = ["--input", DATA / "shakespeare" / "test.csv", "--tokenizer", "gpt2", "--output", self.folder / "u.h5"]
        for leave_out in (0, 2, 4):
            refused(good[:leave_out] + good[leave_out + 2:], good[leave_out], "required")
        refused([*good, "--documents", "--seq_len", 8], "--documents", "--seq-len")
        refused([*good, "--documents", "--seed", 8], "--seed", "--documents --pack")
        refused([*good, "--seq-len", 1], "--seq-len")
        refused([*good, "--threads", -1], "--threads")
        refused([*good, "--max-rows", -1], "--max-rows")
        refused([*good, "--bogus"], "--bogus")
        refused([*good, "--output", self.folder], "is a directory")
        refused([*good, "--output", good[1], "--quiet"], "is the output and an input")
        refused(["--input", DATA / "chess", *good[2:]], "chess: holds 2 Parquet and 2 JSON Lines files")
        self.assertFalse((self.folder / "u.h5").exists())

    def test_help(self):
        result = fsdp_cli.run(PROGRAM, ["tokens", "--help"])
        self.assertEqual(result.code, 0)
        for word in ("Usage: fsdp-download tokens --input FILES", "Examples", "--seq-len,--seq_len", "Exit codes"):
            self.assertIn(word, result.out)
        self.assertIn("fsdp-download tokens --help", fsdp_cli.run(PROGRAM, ["--help"]).out)

    def test_config_file(self):
        config = self.folder / "tokens.toml"
        config.write_text(f'input = ["{DATA}/shakespeare/test.csv", "{DATA}/shakespeare/validation.csv"]\ntokenizer = "gpt2"\nseq-len = 64\n')
        output = self.folder / "config.h5"
        result = fsdp_cli.run(PROGRAM, ["tokens", "--config", config, "--output", output])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(read(output)["input_ids"].shape[1], 64)

    def test_bad_input(self):
        def write(name, content):
            (self.folder / name).write_bytes(content)
            return self.folder / name

        good = write_jsonl(self.folder / "good.jsonl", ["fine"] * 3000)
        self.refused([good, write("cut.jsonl", b'{"text": "a"}\n{"text": "b')], 4, "cut.jsonl: line 2: is no JSON")
        self.refused(write("key.jsonl", b'{"body": "a"}\n'), 4, "key.jsonl: line 1", "'text'", "only 'body'", "--field")
        self.refused(write("pretty.json", b'[\n{"text": "a"}\n, {"text": 1}]\n'), 4, "pretty.json: element 2 at byte 18: 'text' holds a number")
        self.refused(write("latin1.jsonl", b'{"text": "\xe9"}\n'), 4, "latin1.jsonl: line 1", "UTF-8")
        self.refused(write("key.csv", b"id,body\n1,a\n"), 4, "key.csv", "'text'", "only 'id', 'body'")
        self.refused(write("quote.csv", b'text\nfine\n"open\n'), 4, "quote.csv: line 3", "never closed")
        self.refused(write("fields.csv", b"a,text\n1,2\n1,2,3\n"), 4, "fields.csv: line 3: has 3 fields")
        self.refused(write("no.parquet", b"text"), 4, "no.parquet: is not a Parquet file")
        self.refused(write("packed.gz", b"\x1f\x8b\x08\0"), 4, "packed.gz", "gzip", "unpack")
        self.refused(write("cut.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99)[:-9]), 4, "cut.jsonl.gz: the compressed data ends early")
        self.refused(write("broken.jsonl.gz", b"\x1f\x8b\x08\0" + b"x" * 30), 4, "broken.jsonl.gz", "the gzip data is damaged")
        self.refused(DATA / "shakespeare" / "test.h5", 4, "test.h5: is an HDF5 file")
        self.refused(write("empty.jsonl", b"\n"), 4, "no documents in", "empty.jsonl")
        self.refused(write("empty.txt", b""), 4, "no documents in", "empty.txt")
        self.refused(write("header.csv", b"text\n"), 4, "no documents in", "header.csv")
        self.refused(write("little.txt", b"a few words"), 4, "3 token ids do not fill one row", "257", options=())
        self.refused(self.folder / "missing.csv", 4, "missing.csv: No such file")
        (self.folder / "empty").mkdir()
        self.refused(self.folder / "empty", 4, "empty: holds no data files")
        # The bad file is the last one; the error is found before the first file is encoded.
        self.refused([good, self.folder / "no.parquet"], 4, "no.parquet")

    def test_tokenizer_that_is_not_there(self):
        result = fsdp_cli.run(PROGRAM, ["tokens", "--input", DATA / "shakespeare" / "test.csv", "--tokenizer",
                                        self.folder / "none", "--output", self.folder / "t.h5"])
        self.assertIn(result.code, (1, 4))
        self.assertIn(str(self.folder / "none"), result.errors()[0])
        self.assertFalse((self.folder / "t.h5").exists())

    def test_without_parquet_support(self):
        """The program runs without libfsdp_parquet.so beside it."""
        alone = self.folder / "alone" / "bin"
        alone.mkdir(parents=True)
        program = shutil.copy(fsdp_cli.folder("FSDP_BIN") / PROGRAM, alone)
        for name, code in (("validation.parquet", 1), ("validation.jsonl", 0)):
            process = subprocess.run([program, "tokens", "--input", DATA / "chess" / name, "--tokenizer", "gpt2", "--output",
                                      self.folder / "alone.h5"], capture_output=True, text=True, check=False, env=fsdp_cli.environment())
            result = fsdp_cli.Result([program, name], process.returncode, process.stdout, process.stderr)
            self.assertEqual(result.code, code, str(result))
            if code:
                self.assert_refused(result, 1, "validation.parquet: is a Parquet file", alone.parent / "lib" / "fsdp" / "libfsdp_parquet.so", "scripts/setup")

    def test_starts_without_loading_arrow(self):
        log = self.folder / "loader"
        result = fsdp_cli.run(PROGRAM, ["tokens", "--input", DATA / "shakespeare" / "test.csv", "--tokenizer", "gpt2", "--output",
                                        self.folder / "light.h5"], env={"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log)})
        self.assertEqual(result.code, 0, str(result))
        opened = "".join(path.read_text(errors="replace") for path in self.folder.glob("loader.*"))
        self.assertIn("libhdf5", opened)
        for heavy in ("libarrow", "libparquet", "libtorch", "libmpi"):
            self.assertNotIn(heavy, opened)

    def test_a_failed_run_keeps_the_old_output(self):
        output = self.folder / "old.h5"
        self.tokens(DATA / "shakespeare" / "test.csv", output)
        before = output.read_bytes()
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"text": "a"}\nno\n')
        self.tokens(bad, output, code=4)
        self.assertEqual(output.read_bytes(), before)
        self.assertEqual(self.temporary_files(), [])

    def test_output_folder(self):
        source = DATA / "shakespeare" / "test.csv"
        self.assert_refused(self.tokens(source, self.folder / "none" / "o.h5", code=1), 1, "o.h5: there is no directory")
        self.assert_refused(self.tokens(source, "/proc/o.h5", code=1), 1, "/proc/o.h5: token file not written")
        if os.geteuid() != 0:
            locked = self.folder / "locked"
            locked.mkdir(mode=0o500)
            self.assert_refused(self.tokens(source, locked / "o.h5", code=1), 1, "o.h5", "Permission denied")


if __name__ == "__main__":
    fsdp_cli.main()
