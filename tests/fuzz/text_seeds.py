"""Seed inputs of the fuzz targets for configurations, vocabularies, texts and answers of a hub, cut from the files in
tests/fixtures and data."""

import json
import pathlib
import struct
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENIZERS = ROOT / "tests" / "fixtures" / "tokenizers"
HASH = "a" * 40  # as in hub_files_fuzz.cpp
SHA256 = "b" * 64


def packed(files):
    """Encodes (index of the name, bytes) pairs for targets that read a directory."""
    return b"".join(struct.pack("<BI", number, len(data)) + data for number, data in files)


def as_bytes(value):
    return json.dumps(value, ensure_ascii=False).encode()


def configs():
    return [json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((ROOT / "tests" / "fixtures").glob("*/*/**/config.json"))]


def config_seeds(_):
    seeds = configs()
    llama = next(config for config in seeds if config.get("model_type") == "llama")
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    seeds += [{**llama, "rope_scaling": llama3}, {**llama, "rope_parameters": {**llama3, "rope_theta": 500000.0}},
              {**llama, "rope_scaling": {"type": "linear", "factor": 2.0}, "head_dim": 64, "tie_word_embeddings": True}]
    seeds += [{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 16,
               "activation_function": "gelu_new", "n_inner": None, "resid_pdrop": 0.1},
              {"model_type": "mingpt", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_hidden": 32, "vocab_size": 11,
               "block_size": 16, "bias": True, "dropout": 0.1, "gelu": "tanh", "tied_head": True}]
    return [as_bytes(seed) for seed in seeds]


def run_seeds(_):
    seeds = []
    for config in configs():
        if config.get("model_type", "mingpt") not in ("mingpt", "llama"):
            continue
        seeds.append({"model": config, "state": {"step": 3, "samples": 24, "optimizer_steps": 3, "loss_scale": 1.0,
                                                 "good_steps": 0},
                      "options": {"lr": "0.001", "seed": "3"}, "data": {"path": "train.h5", "rows": 100}, "world_size": 2,
                      "format": "fsdp-run", "format_version": 1, "program_version": "0.1.0",
                      "files": {".metadata": {"size_bytes": 3, "crc32": zlib.crc32(b"abc")},
                                "__0_0.distcp": {"size_bytes": 0, "crc32": 0}}, "checksum": 0})
    return [packed([(0, as_bytes(seed)), (1, b"abc"), (2, b"")]) for seed in seeds]


def gpt2_parts(count=200):
    """Returns the first merges of GPT-2 and a vocabulary of their pieces."""
    merges = (ROOT / "data" / "gpt2" / "merges.txt").read_text(encoding="utf-8").splitlines()[1:count]
    whole = json.loads((ROOT / "data" / "gpt2" / "vocab.json").read_text(encoding="utf-8"))
    pieces = [piece for piece, index in whole.items() if index < 256] + [merge.replace(" ", "") for merge in merges]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, merges


def fields(message):
    """Yields number, begin and end of each length-delimited or varint field of a protocol buffer."""
    def varint(at):
        value, shift = 0, 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value, at

    at = 0
    while at < len(message):
        begin = at
        key, at = varint(at)
        length, at = varint(at)
        at += length if key & 7 == 2 else 0
        yield key >> 3, begin, at


def small_model(num_pieces):
    """Returns tokenizer.model with only its first pieces."""
    model = (TOKENIZERS / "tokenizer.model").read_bytes()
    pieces = [model[begin:end] for number, begin, end in fields(model) if number == 1]
    rest = [model[begin:end] for number, begin, end in fields(model) if number != 1]
    return b"".join(pieces[:num_pieces] + rest)


def tokenizer_model_seeds(_):
    config = as_bytes({"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": {"content": "</s>"},
                       "added_tokens_decoder": {"300": {"content": "<|user|>", "special": False}}})
    added = as_bytes({"<PAD>": 301})
    seeds = [packed([(0, small_model(count)), *more]) for count in (3, 259, 300) for more in ([], [(1, config), (2, added)])]
    models = TOKENIZERS / "sentencepiece"  # other normalizers, with and without rules
    return seeds + [packed([(0, (models / f"{name}.model").read_bytes())]) for name in ("few_rules", "unescaped")]


def tokenizer_json_seeds(_):
    vocab, merges = gpt2_parts()
    marks = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                      {"Sequence": {"id": "A", "type_id": 0}}],
             "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    bytes_step = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    split = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {
        "Regex": r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}}
    gpt2 = {"added_tokens": [{"id": len(vocab), "content": "<|endoftext|>", "special": True}], "normalizer": None,
            "pre_tokenizer": bytes_step, "post_processor": {"type": "ByteLevel"},
            "model": {"type": "BPE", "dropout": None, "vocab": vocab, "merges": merges}}
    llama3 = {**gpt2, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {**bytes_step, "use_regex": False}]},
              "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, marks]},
              "model": {**gpt2["model"], "ignore_merges": True, "merges": [merge.split() for merge in merges]}}
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "▁a", "ab", "▁ab"]
    fallback = {"type": "BPE", "byte_fallback": True, "vocab": {piece: i for i, piece in enumerate(pieces)},
                "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]]}
    added = [{"id": i, "content": pieces[i], "special": True, "normalized": False} for i in range(3)]
    spaces = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                  {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    llama2 = {"added_tokens": added, "normalizer": spaces, "pre_tokenizer": None, "post_processor": marks, "model": fallback}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    config = as_bytes({"add_bos_token": True, "bos_token": "<s>", "add_prefix_space": True})
    files = [[(0, as_bytes(json_file))] for json_file in
             (gpt2, llama3, llama2, {**llama2, "normalizer": None, "pre_tokenizer": metaspace})]
    strips = {"id": 265, "content": "<x>", "special": False, "normalized": True, "rstrip": True, "lstrip": True}
    files += [[*files[2], (1, config), (2, as_bytes({"<pad>": 270}))]]
    files += [[(0, as_bytes({**llama2, "added_tokens": [*added, strips, {**strips, "id": 266, "single_word": True,
                                                                         "content": "y", "normalized": False}]}))]]
    files += [[(3, as_bytes(vocab)), (4, "\n".join(["#version: 0.2", *merges]).encode())]]
    return [packed(pair) for pair in files]


def json_lines_seeds(_):
    lines = (ROOT / "data" / "chess" / "train.jsonl").read_bytes().splitlines()[:6]
    field = next(iter(json.loads(lines[0])))
    real = b"\n".join(lines).replace(field.encode(), b"text")
    return [real, b'\xef\xbb\xbf{"text": "a", "n": [1, {"text": 2.5e3}]}\r\n\n{"text": ["a", "\\u00e9\\ud83d\\ude00"]}\n{"text": null}']


def jinja_seeds(_):
    folder = ROOT / "tests" / "fixtures" / "jinja"
    rows = [row["template"].encode() for name, key in (("cases", "cases"), ("errors", "errors"), ("mask_edges", "cases"))
            for row in json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))[key]]
    return rows + [path.read_bytes() for path in sorted(folder.glob("*.jinja"))]


def csv_seeds(_):
    real = (ROOT / "data" / "shakespeare" / "test.csv").read_bytes()[:3000]
    return [real, b'id,text\r\n1,"a ""b"", c\nd"\r\n2,\r\n', b"text\tid\na b\t1\n\n\nc\t2", b'\xef\xbb\xbf"text"\r"x"\r\ry']


def listing():
    return [{"type": "file", "oid": HASH, "size": 12, "path": "config.json"}, {"type": "directory", "oid": HASH, "path": "a"},
            {"type": "file", "oid": HASH, "size": 1 << 33, "path": "a/model.safetensors",
             "lfs": {"oid": SHA256, "size": 1 << 33, "pointerSize": 135}, "xetHash": SHA256}]


def hub_files_seeds(_):
    tree = {"format_version": 1, "files": {
        "config.json": {"size": 12, "blob_id": HASH},
        "a/model.safetensors": {"size": 1 << 33, "blob_id": HASH, "lfs_sha256": SHA256, "lfs_size": 1 << 33}}}
    manifest = {"program": "fsdp-download 0.1.0", "repo": "owner/name", "type": "model", "revision": "main", "commit": HASH,
                "endpoint": "https://huggingface.co", "selection": "all", "tree": tree}
    journal = f"fsdp-partial 1 {HASH} 1000000\n0 1000 00000000\n500 999999 deadbeef\n5 4 00000000\n".encode()
    return [packed([(0, as_bytes(tree)), (1, as_bytes(manifest)), (2, journal)])]


def yaml_seeds(_):
    return [text.encode() for text in (
        "# a run\nbase_model: org/name\nlearning_rate: 2e-4\nsample_packing: yes\nlora_target_modules:\n  - q_proj\n  - v_proj\nwandb_project:\n",
        "a: &x {p: 1, q: [1_000, 0x1F, 010, 1:30, -.inf, ~]}\nb:\n  <<: *x\n  q: 'it''s'\nc: [*x, *x]\n",
        "---\ntext: |\n  one\n   two\nfold: >-\n  one\n  two\n\"quoted\\tkey\": !!str 12\n? k\n: !!float 3\n...\n",
        "\ufeff%YAML 1.1\n---\n{a: [b, {c: d}], e: \"\\x41\\u00e9\"}\n")]


def hub_answers_seeds(_):
    def answer(body, *headers, status="200 OK"):
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
        return "\r\n".join(lines).encode() + body

    page = answer(as_bytes(listing()), 'Link: </api/models/owner/name/tree/main?cursor=x>; rel="next"')
    return [answer(as_bytes({"sha": HASH, "id": "owner/name"})), page + b"\0" + answer(b"[]"), answer(as_bytes(listing())),
            answer(b"", "Location: /elsewhere", status="302 Found") + b"\0" + answer(b"[]"),
            answer(b"", "X-Error-Code: GatedRepo", "X-Error-Message: ask first", status="403 Forbidden"),
            answer(b"", 'RateLimit: "api";r=0;t=55', "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", status="429 Too Many"),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n"]


MAKERS = {"config_json": config_seeds, "run_json": run_seeds, "tokenizer_json": tokenizer_json_seeds,
          "tokenizer_model": tokenizer_model_seeds, "jinja": jinja_seeds, "json_lines": json_lines_seeds, "csv": csv_seeds,
          "hub_files": hub_files_seeds, "hub_answers": hub_answers_seeds, "yaml": yaml_seeds}
