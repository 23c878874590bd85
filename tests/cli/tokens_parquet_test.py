"""fsdp-download tokens on Parquet files written by pyarrow: every kind of text column, encoding and compression gives the
same tokens as JSON Lines; damage is named."""

import json
import random
import sys

import fsdp_cli

with fsdp_cli.needed():
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
if not list(fsdp_cli.folder("FSDP_BIN").parent.glob("lib/**/libfsdp_parquet.so")):
    print("SKIPPED: built without Parquet")
    sys.exit(fsdp_cli.SKIPPED)

from tokens_cli import DATA, TokensCase, documents, write_jsonl  # after the reasons to skip

WORDS = ["e2e4", "e7e5", "", "knight", "é", "😀", "a longer piece of text, with, commas\n"]


def random_lists(count, seed=7):
    generator = random.Random(seed)
    return [generator.choices(WORDS, k=generator.choice((0, 1, 2, 5, 30, 3000 if i % 500 == 3 else 7))) for i in range(count)]


class ArrowStreams(TokensCase):
    """Files and folders as datasets.save_to_disk writes them."""

    def write(self, folder, table, name="data-00000-of-00001.arrow"):
        folder.mkdir(exist_ok=True)
        with pyarrow.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table, max_chunksize=1000)
        for other in ("state.json", "dataset_info.json"):
            (folder / other).write_text("{}")
        return folder / name

    def test_columns_of_texts(self):
        saved, texts = self.folder / "saved", [f"text {i} é" if i % 7 else None for i in range(2500)]
        column = pyarrow.array(texts)
        lists = pyarrow.array([t.split() if t else t for t in texts])
        output, expected = self.folder / "arrow.h5", self.folder / "lines.h5"
        self.tokens(write_jsonl(self.folder / "lines.jsonl", texts), expected, "--documents")
        for name, values in (("plain", column), ("large", column.cast(pyarrow.large_string())), ("dictionary", column.dictionary_encode()), ("lists", lists)):
            with self.subTest(name):
                path = self.write(saved, pyarrow.table({"id": range(2500), "text": values, "more": [[1]] * 2500}))
                (saved / "cache-0123.arrow").write_bytes(path.read_bytes())
                for source in (path, saved):
                    self.tokens(source, output, "--documents")
                    self.assert_same(output, expected)
        self.write(saved, pyarrow.table({"Moves": column}))
        self.tokens(saved, output, "--documents")
        self.assert_same(output, expected)
        self.write(saved, pyarrow.table({"body": column}))
        self.tokens(saved, output, "--documents", "--field", "body")
        self.assert_same(output, expected)
        self.refused(saved, 4, "data-00000-of-00001.arrow: has no column 'text', only 'body'")

    def test_pairs(self):
        pairs = [{"prompt": f"a{i}", "completion": " b", "odd": {"x": i}} for i in range(5)]
        (self.folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        self.write(self.folder / "saved", pyarrow.Table.from_pylist(pairs))
        self.tokens(self.folder / "saved", self.folder / "arrow.h5")
        self.tokens(self.folder / "pairs.jsonl", self.folder / "lines.h5")
        self.assert_same(self.folder / "arrow.h5", self.folder / "lines.h5")

    def test_nothing_follows_a_stream(self):
        saved = self.folder / "saved"
        path = self.write(saved, pyarrow.table({"text": ["a"] * 300}))
        one = path.read_bytes()
        self.tokens(saved, self.folder / "one.h5", "--documents")
        path.write_bytes(one * 2)
        self.refused(saved, 4, f"data-00000-of-00001.arrow: row 300: the Arrow stream ends at byte {len(one)} of {2 * len(one)}", "a file holds one stream")

    def test_damage_and_splits(self):
        saved = self.folder / "saved"
        path = self.write(saved, pyarrow.table({"text": ["a b c"] * 3000}))
        whole = path.read_bytes()
        path.write_bytes(whole[:-8])
        self.refused(saved, 4, "without its end; was it copied whole?")
        for at in range(4, len(whole), 997):
            broken = bytearray(whole)
            broken[at] ^= 0xff
            path.write_bytes(broken)
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", saved, "--tokenizer", "gpt2", "--output", self.folder / "broken.h5"])
            self.assertIn(result.code, (0, 4), str(result))
        both = self.folder / "both"
        both.mkdir()
        for split in ("train", "test"):
            self.write(both / split, pyarrow.table({"text": ["a"] * 300}))
        (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        self.refused(both, 2, "several splits", "both/test", "both/train")
        self.tokens(both / "train", self.folder / "train.h5", "--documents")


class Kinds(TokensCase):
    def check(self, name, table, texts, *options, **how):
        """The Parquet file of `table` gives the tokens of `texts`; None and null give an empty document."""
        with self.subTest(name, **how):
            path = self.folder / "kind.parquet"
            pyarrow.parquet.write_table(table, path, **how)
            output, expected = self.folder / "kind.h5", self.folder / "expected.h5"
            self.tokens(path, output, "--documents", *options)
            self.tokens(write_jsonl(self.folder / "kind.jsonl", texts), expected, "--documents")
            self.assert_same(output, expected)

    def test_types_of_strings(self):
        texts = ["one", None, "", "é 😀", "one"] * 300
        plain = pyarrow.array(texts)
        for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary()):
            self.check(str(kind), pyarrow.table({"id": list(range(1500)), "text": plain.cast(kind)}), texts)
        self.check("dictionary", pyarrow.table({"text": plain.dictionary_encode()}), texts)
        chunked = pyarrow.chunked_array([plain, plain.slice(3)])
        self.check("chunks", pyarrow.table({"text": chunked}), texts + texts[3:])
        required = pyarrow.schema([pyarrow.field("text", pyarrow.string(), nullable=False)])
        self.check("required", pyarrow.table({"text": ["a", "b", ""]}, schema=required), ["a", "b", ""])
        self.check("all null", pyarrow.table({"text": pyarrow.array([None] * 10, pyarrow.string())}), [None] * 10)

    def test_types_of_lists(self):
        lists = random_lists(2000)
        joined = [" ".join(words) for words in lists]
        for kind in (pyarrow.list_(pyarrow.string()), pyarrow.large_list(pyarrow.string()), pyarrow.list_(pyarrow.large_string()),
                     pyarrow.list_(pyarrow.field("element", pyarrow.string(), nullable=False))):
            self.check(str(kind), pyarrow.table({"Moves": pyarrow.array(lists, kind), "Result": ["1-0"] * 2000}), joined)
        dictionary = pyarrow.list_(pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
        self.check("list of dictionary", pyarrow.table({"Moves": pyarrow.array(lists, dictionary)}), joined)
        required = pyarrow.schema([pyarrow.field("Moves", pyarrow.list_(pyarrow.string()), nullable=False)])
        self.check("required", pyarrow.table({"Moves": lists}, schema=required), joined)
        strict = pyarrow.schema([pyarrow.field("Moves", pyarrow.list_(pyarrow.field("element", pyarrow.string(), nullable=False)), nullable=False)])
        self.check("strict", pyarrow.table({"Moves": lists}, schema=strict), joined)
        fixed = pyarrow.list_(pyarrow.string(), 2)
        self.check("fixed size", pyarrow.table({"Moves": pyarrow.array([["a", "b"], ["c", "d"]], fixed)}), ["a b", "c d"])
        nulls = [None, [], ["a"], None, ["b", "c"], []] * 400
        self.check("null lists", pyarrow.table({"Moves": nulls}), [words and " ".join(words) for words in nulls])
        self.check("old names", pyarrow.table({"Moves": nulls}), [words and " ".join(words) for words in nulls], use_compliant_nested_type=False)

    def test_encodings_and_compressions(self):
        lists = random_lists(3000, seed=11)
        joined = [" ".join(words) for words in lists]
        table, strings = pyarrow.table({"Moves": lists}), pyarrow.table({"text": joined})
        for compression in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
            self.check(compression, table, joined, compression=compression, row_group_size=700)
        for version in ("1.0", "2.0"):
            for dictionary in (False, True):
                how = {"data_page_version": version, "use_dictionary": dictionary, "data_page_size": 1000, "row_group_size": 1100}
                self.check("lists", table, joined, **how)
                self.check("strings", strings, joined, **how)
        for encoding in ("PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
            self.check(encoding, strings, joined, use_dictionary=False, column_encoding={"text": encoding}, data_page_size=5000)
        self.check("checksums", table, joined, write_page_checksum=True)

    def test_which_column(self):
        table = pyarrow.table({"Moves": [["m"]], "text": ["t"], "other": ["o"]})
        self.check("text before Moves", table, ["t"])
        self.check("--field", table, ["o"], "--field", "other")
        self.check("--field of a list", table, ["m"], "--field", "Moves")

    def test_name_does_not_matter(self):
        path = self.folder / "games.bin"
        path.write_bytes((DATA / "chess" / "validation.parquet").read_bytes())
        self.tokens(path, self.folder / "bin.h5", "--documents")
        self.assertEqual(len(documents(self.folder / "bin.h5")), 150)


class Chess(TokensCase):
    def test_games_as_parquet_and_as_json_lines(self):
        for split, games in (("train", 1500), ("validation", 150)):
            for layout in ("--documents", "--pack"):
                outputs = []
                for suffix in ("parquet", "jsonl"):
                    outputs.append(self.folder / f"{suffix}.h5")
                    report = self.tokens(DATA / "chess" / f"{split}.{suffix}", outputs[-1], layout, "--threads", 3, "--json").json()
                    self.assertEqual(report["documents"], games)
                self.assert_same(*outputs)


class Damage(TokensCase):
    def write(self, name, columns, **how):
        pyarrow.parquet.write_table(pyarrow.table(columns), self.folder / name, **how)
        return self.folder / name

    def test_columns_that_hold_no_text(self):
        path = self.write("types.parquet", {"text": [1, 2], "lists": [[["a"]], [["b"]]], "record": [{"a": "x", "b": "y"}] * 2, "real": [0.5, 1.5]})
        self.refused(path, 4, "types.parquet: column 'text' holds INT64", "expected strings or lists of strings")
        for field, what in (("lists", "lists of lists"), ("record", "a record of 2 columns"), ("real", "DOUBLE")):
            self.refused(path, 4, f"column '{field}'", what, options=("--documents", "--field", field))
        nulls = self.write("nulls.parquet", {"text": pyarrow.nulls(3), "list": pyarrow.array([[], None, [None]], pyarrow.list_(pyarrow.null()))})
        for field in ("text", "list"):
            self.refused(nulls, 4, f"nulls.parquet: column '{field}' has no values: its type is null", "expected strings or lists of strings", options=("--field", field))
        self.refused(path, 4, "has no column 'none', only 'text', 'lists', 'record', 'real'", options=("--field", "none"))
        self.refused(self.write("one.parquet", {"text": [{"s": "a"}]}), 4, "one.parquet: column 'text' holds records (of 's')")
        self.refused(self.write("list.parquet", {"text": [[{"s": "a"}]]}), 4, "list.parquet: column 'text' holds records")
        twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
        pyarrow.parquet.write_table(twice, self.folder / "twice.parquet")
        self.refused(self.folder / "twice.parquet", 4, "twice.parquet: has two columns 'text'")
        self.refused(self.write("names.parquet", {"a": ["x"], "b": [1]}), 4, "has no column 'text' or 'Moves', only 'a', 'b'", "--field")

    def test_null_in_a_list_is_named_with_its_row(self):
        lists = [["a"]] * 1234 + [["b", None, "c"]] + [["d"]] * 10
        path = self.write("null.parquet", {"Moves": lists}, row_group_size=1000)
        self.refused(path, 4, "null.parquet: row group 1, row 1234: the list in column 'Moves' has a null at position 1")

    def test_no_rows(self):
        empty = pyarrow.array([], pyarrow.string())
        self.refused(self.write("rows.parquet", {"text": empty}), 4, "no documents in", "rows.parquet")

    def test_truncated(self):
        whole = (DATA / "chess" / "train.parquet").read_bytes()
        for size in (4, 5, 12, len(whole) // 2, len(whole) - 1):
            path = self.folder / "cut.parquet"
            path.write_bytes(whole[:size])
            self.refused(path, 4, "cut.parquet: ")

    def test_encrypted(self):
        whole = (DATA / "chess" / "validation.parquet").read_bytes()
        for name, content in (("all", b"PARE" + whole[4:-4] + b"PARE"), ("footer", whole[:-4] + b"PARE")):
            path = self.folder / f"{name}.parquet"
            path.write_bytes(content)
            self.refused(path, 4, f"{name}.parquet: is encrypted")

    def test_damaged_page(self):
        texts = [f"text number {i}, which is not compressed" for i in range(4000)]
        path = self.write("page.parquet", {"text": texts}, use_dictionary=False, compression="none", write_page_checksum=True, row_group_size=2000)
        content = bytearray(path.read_bytes())
        at = content.index(b"text number 3500,")
        content[at + 12] ^= 1
        path.write_bytes(content)
        self.refused(path, 4, "page.parquet: row group 1, row ", "CRC")

    def test_random_damage_never_crashes(self):
        generator = random.Random(5)
        whole = (DATA / "chess" / "validation.parquet").read_bytes()
        codes = set()
        for _ in range(60):
            content = bytearray(whole)
            for _ in range(generator.choice((1, 3, 20))):
                content[generator.randrange(4, len(content))] = generator.randrange(256)
            path = self.folder / "random.parquet"
            path.write_bytes(content)
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", path, "--tokenizer", "gpt2", "--documents", "--quiet",
                                                    "--output", self.folder / "random.h5"])
            self.assertIn(result.code, (0, 4), str(result))
            if result.code == 4:
                self.assertIn("random.parquet", result.errors()[0])
            codes.add(result.code)
        self.assertIn(4, codes)


if __name__ == "__main__":
    fsdp_cli.main()
