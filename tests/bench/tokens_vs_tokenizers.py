#!/usr/bin/env python3
"""fsdp-download tokens beside Hugging Face's tokenizers (encode_batch, all threads), the sentencepiece package (all threads) and Megatron's tools/preprocess_data.py: MB of text a
second, in turns, and memory.

The texts are the Python sources of the packages that this interpreter has (--megabytes of them, a document each, cut at 100 kB), as JSON Lines; --corpus names others.
Byte-level BPE is GPT-2's vocabulary; the SentencePiece model is a BPE of 32,000 with byte fallback, made of the texts first. Time is that of whole commands: starting, reading, encoding
and writing. "per core" divides by the processor seconds of all threads and processes. Ids of all documents are compared with those of tokenizers and of sentencepiece, which differ from each other.
Megatron takes part where FSDP_MEGATRON is a checkout of Megatron-LM whose imports work (it needs megatron-core's).
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

from machine import print_machine

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"


def write_corpus(path, megabytes):
    """Returns the bytes of texts."""
    left = megabytes * 1_000_000
    with open(path, "w", encoding="utf-8") as file:
        for source in sorted(pathlib.Path(sysconfig.get_path("purelib")).rglob("*.py")):
            try:
                text = source.read_text(encoding="utf-8")[:100_000]
            except (OSError, UnicodeDecodeError):
                continue
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            left -= len(text.encode())
            if left <= 0:
                break
    return megabytes * 1_000_000 - left


def texts_of(corpus):
    with open(corpus, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def make_tokenizers(folder, corpus):
    """Returns by name a folder with both forms of a tokenizer."""
    import sentencepiece
    import tokenizers
    bpe = folder / "bpe"
    bpe.mkdir()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(DATA / "gpt2" / name, bpe)
    made = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(bpe / "vocab.json"), str(bpe / "merges.txt")))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(bpe / "peer.json"))
    model = folder / "sentencepiece"
    model.mkdir()
    # Sentences are lines, as where the trainer reads files: no piece holds a line end.
    lines = (line for number, text in enumerate(texts_of(corpus)) if number % 4 == 0 for line in text[:8000].split("\n") if line)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_prefix=str(model / "tokenizer"), vocab_size=32000, model_type="bpe", byte_fallback=True, character_coverage=0.9999,
                                             input_sentence_size=200_000, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                                             allow_whitespace_only_pieces=True, minloglevel=2)
    from transformers import LlamaTokenizerFast
    LlamaTokenizerFast(vocab_file=str(model / "tokenizer.model"), legacy=True).save_pretrained(model / "hf")
    shutil.move(model / "hf" / "tokenizer.json", model / "peer.json")
    return {"byte-level BPE": bpe, "SentencePiece": model}


def peer(corpus, tokenizer, output):
    """Reads lines, encodes batches of 1,000 documents on all threads, writes ids and offsets."""
    import numpy
    lengths = []
    if tokenizer.endswith(".model"):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(tokenizer)

        def encoded(batch):
            return model.encode(batch, num_threads=int(os.environ["RAYON_NUM_THREADS"]))
    else:
        import tokenizers
        encoder = tokenizers.Tokenizer.from_file(tokenizer)

        def encoded(batch):
            return (encoding.ids for encoding in encoder.encode_batch_fast(batch, add_special_tokens=False))
    with open(output, "wb") as file:
        batch = []

        def flush():
            for ids in encoded(batch):
                lengths.append(len(ids))
                file.write(numpy.array(ids, numpy.uint16).tobytes())
            batch.clear()
        for text in texts_of(corpus):
            batch.append(text)
            if len(batch) == 1000:
                flush()
        flush()
    numpy.save(output + ".lengths.npy", numpy.array(lengths))


# A process of its own starts each command, because a child begins with the memory of its parent as its largest.
WATCH = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def measured(command, env):
    """Returns seconds, processor seconds of all threads and processes, and the largest memory of a process in MiB."""
    done = subprocess.run([sys.executable, "-S", "-c", WATCH, *command], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def difference(ours, theirs):
    """Compares all ids; our documents may begin with a BOS token."""
    import h5py
    import numpy
    with h5py.File(ours) as file:
        tokens, offsets = file["tokens"][()], file["offsets"][()]
    peers, lengths = numpy.fromfile(theirs, numpy.uint16), numpy.load(theirs + ".lengths.npy")
    if len(offsets) != len(lengths) + 1:
        return f"{len(offsets) - 1} documents, and {len(lengths)}"
    bos = int(offsets[1] - offsets[0] - lengths[0])
    begins, equal = numpy.concatenate([[0], numpy.cumsum(lengths)]), 0
    for i, length in enumerate(lengths):
        equal += numpy.array_equal(tokens[offsets[i] + bos:offsets[i + 1]], peers[begins[i]:begins[i] + length])
    return f"{equal} of {len(lengths)} documents have equal ids"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--corpus", help="JSON Lines with `text`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(*options.peer)
    print_machine()
    env = dict(os.environ, RAYON_NUM_THREADS=str(options.threads), TOKENIZERS_PARALLELISM="true", HF_HUB_OFFLINE="1")
    program = os.path.join(os.path.dirname(os.environ["FSDP_FINETUNE"]), "fsdp-download")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        corpus = options.corpus or str(folder / "corpus.jsonl")
        size = sum(len(text.encode()) for text in texts_of(corpus)) if options.corpus else write_corpus(corpus, options.megabytes)
        print(f"{size / 1e6:.0f} MB of text, {options.threads} threads, {options.rounds} rounds")
        for kind, tokenizer in make_tokenizers(folder, corpus).items():
            ours, theirs = str(folder / "ours.h5"), str(folder / "theirs.bin")
            commands = {"fsdp-download tokens": [program, "tokens", "--input", corpus, "--tokenizer", str(tokenizer), "--documents", "--output", ours, "--threads", str(options.threads), "--quiet"],
                        "tokenizers": [sys.executable, os.path.abspath(__file__), "--peer", corpus, str(tokenizer / "peer.json"), theirs]}
            if kind == "SentencePiece":
                commands["sentencepiece"] = [sys.executable, os.path.abspath(__file__), "--peer", corpus, str(tokenizer / "tokenizer.model"), theirs + ".sp"]
            megatron = os.environ.get("FSDP_MEGATRON")
            if megatron:
                hf = folder / f"hf-{tokenizer.name}"
                hf.mkdir()
                shutil.copy(tokenizer / "peer.json", hf / "tokenizer.json")
                (hf / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
                commands["Megatron"] = [sys.executable, f"{megatron}/tools/preprocess_data.py", "--input", corpus, "--output-prefix", str(folder / "megatron"), "--tokenizer-type",
                                        "HuggingFaceTokenizer", "--tokenizer-model", str(hf), "--workers", str(options.threads)]
            times = {who: [] for who in commands}
            for turn in range(options.rounds):
                for who in list(commands) if turn % 2 == 0 else list(commands)[::-1]:
                    times[who].append(measured(commands[who], env))
            print(f"{kind}: tokenizers: {difference(ours, theirs)}" + (f"; sentencepiece: {difference(ours, theirs + '.sp')}" if "sentencepiece" in commands else ""))
            for who in commands:
                rate, core = [size / 1e6 / one[0] for one in times[who]], [size / 1e6 / one[1] for one in times[who]]
                line = f"  {who:21} {statistics.median(rate):7.1f} MB/s, {statistics.median(core):6.1f} per core, {max(one[2] for one in times[who]):5.0f} MiB"
                if who != "fsdp-download tokens":
                    walls = [theirs_[0] / ours_[0] for ours_, theirs_ in zip(times["fsdp-download tokens"], times[who])]
                    cores = [theirs_[1] / ours_[1] for ours_, theirs_ in zip(times["fsdp-download tokens"], times[who])]
                    line += (f"; we are {statistics.median(walls):.2f} times as fast ({min(walls):.2f} to {max(walls):.2f}), per core {statistics.median(cores):.2f} "
                             f"({min(cores):.2f} to {max(cores):.2f})")
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
