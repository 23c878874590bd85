"""Ids, marks and decoded texts equal those of Hugging Face's tokenizers and transformers, and of SentencePiece, on
hundreds of random texts and many kinds of tokenizer.json.
Usage: tokenizer_hf_test.py PATH/TO/tokenize_lines PROJECT"""

import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import sentencepiece
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)
try:
    from transformers import AutoTokenizer, CodeLlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(SKIPPED)

TOKENIZE_LINES, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = PROJECT / "tests/fixtures/tokenizers/tokenizer.model"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NASTY = ["", " ", "  ", "\n", "a", " a", "  a", "a ", "a  b", "▁", "▁a", " ▁ a", "a▁b", "\u180e", "x\u180e \u180e", "\u0085 \u00a0\u3000 x",
         "don't DON'T doN'ſ I'LL 'Ve", "\0", "a\0b", "<s>", "</s> x", "<|begin_of_text|>hi", "<unk>", "▁<PRE> <PRE>x <MID>", "<0x0A>",
         "１２３ ½ Ⅷ ² 12345678", "e\u0301 é", "👩‍👩‍👧 🇩🇪🇫🇷", "\ufeffbom", "\r\n\r\n x\r\n", "\t\tx\t", "日本語のテキスト。中文，测试", "\ufffd", " " * 50 + "x", "a" * 300,
         "\n\n\n   \n  x", "..." * 40 + "\n\n", "ĀĠĊ Ġthe", "//  --->  =="]


def random_texts(count):
    generator = random.Random(11)
    corpus = (PROJECT / "data/shakespeare/validation.csv").read_text("utf-8") + (PROJECT / "data/chess/validation.jsonl").read_text("utf-8")
    limits = [0x80, 0x250, 0x600, 0x3100, 0xA000, 0x20000, 0x110000]

    def character():
        while True:
            code = generator.randrange(generator.choice(limits))
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    texts = list(NASTY)
    for _ in range(count):
        text = ""
        for _ in range(generator.randrange(1, 8)):
            kind = generator.randrange(4)
            if kind == 0:
                begin = generator.randrange(len(corpus))
                text += corpus[begin : begin + generator.randrange(200)]
            elif kind == 1:
                text += "".join(character() for _ in range(generator.randrange(12)))
            elif kind == 2:
                text += "".join(generator.choice(" \n\t\r\u00a0\u2581'sS.,17aZ") for _ in range(generator.randrange(12)))
            else:
                text += generator.choice(NASTY)
        texts.append(text)
    return texts


def ours(name, inputs):
    lines = "".join(json.dumps(value) + "\n" for value in inputs)
    done = subprocess.run([TOKENIZE_LINES, str(name)], input=lines, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and not done.stderr, f"{name}: {done.stderr}"
    results = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert len(results) == len(inputs), f"{name}: {len(results)} answers to {len(inputs)} texts"
    return results


def check(what, name, texts, ids_of, document_of, text_of=None):
    """Compares every text; reports the first one that differs."""
    for text, result in zip(texts, ours(name, texts)):
        assert result["ids"] == ids_of(text), f"{what}: {text!r}\n ours {result['ids']}\n real {ids_of(text)}"
        assert result["document"] == document_of(text), f"{what}: document {text!r}\n ours {result['document']}\n real {document_of(text)}"
        decoded = (text_of or (lambda ids, text: text))(result["ids"], text)
        assert result["decoded"] == decoded, f"{what}: decoded {text!r}\n ours {result['decoded']!r}\n real {decoded!r}"
    print(f"{what}: {len(texts)} texts equal")


def check_json(what, tokenizer, texts, directory, text_of=None):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # treat names of special tokens as plain text
    check(what, directory, texts, lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
          lambda text: tokenizer.encode(text).ids, text_of)


def check_gpt2(texts, directory):
    data = PROJECT / "data/gpt2"
    tokenizer = Tokenizer(models.BPE.from_file(str(data / "vocab.json"), str(data / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    check_json("GPT-2's tokenizer.json", tokenizer, texts, directory)
    encode = lambda text: tokenizer.encode(text).ids
    check("GPT-2 built in", "gpt2", texts, encode, encode)
    check("GPT-2's vocab.json and merges.txt", data, texts, encode, encode)


def train_byte_level(pattern_steps, ignore_merges=False, added=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*pattern_steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator((PROJECT / "data/shakespeare/test.csv").read_text("utf-8").splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.add_tokens(list(added))
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return tokenizer


def check_byte_level(texts, directory):
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")
    check_json("Llama 3's split", train_byte_level([split(LLAMA3)]), texts, directory)
    # The vocabulary has words that its merges do not produce.
    tokenizer = json.loads(train_byte_level([split(LLAMA3)], ignore_merges=True).to_str())
    tokenizer["model"]["merges"] = [merge for i, merge in enumerate(tokenizer["model"]["merges"]) if i % 3]
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
    check_json("ignore_merges", tokenizer, texts, directory)
    plain = train_byte_level([split(LLAMA3)])
    plain.model.ignore_merges = False
    steps = [split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"),
             split(r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")]
    check_json("three splits", train_byte_level(steps), texts, directory)
    check_json("digits", train_byte_level([pre_tokenizers.Digits(individual_digits=True), split(GPT2)]), texts, directory)
    check_json("a literal", train_byte_level([pre_tokenizers.Split(". ", "isolated")]), texts, directory)
    check_json("a pattern with gaps", train_byte_level([split(r"(?<=e)\s+|(?=\d)|(?i:the)")]), texts, directory)
    added = [AddedToken("  ", normalized=False), AddedToken("    ", normalized=False), AddedToken("the ", normalized=True)]
    check_json("added tokens", train_byte_level([split(LLAMA3)], added=added), texts, directory)


def llama_tokenizer(merges=None):
    """Returns the tokenizer that transformers makes from a SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(MODEL))
    vocab = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges or generate_merges(vocab), byte_fallback=True,
                                     fuse_unk=True, unk_token="<unk>"))
    special = [AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def check_byte_fallback(texts, directory):
    def decoded(tokenizer):
        return lambda ids, text: tokenizer.decode(ids, skip_special_tokens=False)

    tokenizer = llama_tokenizer()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    check_json("Llama 2's tokenizer.json", tokenizer, texts, directory, decoded(tokenizer))
    for scheme in ("first", "always", "never"):
        for split in (False, True):
            tokenizer = llama_tokenizer()
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=split)
            if scheme == "never":
                tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
            check_json(f"Metaspace {scheme}, split {split}", tokenizer, texts, directory, decoded(tokenizer))
    for scheme in ("first", "always"):
        tokenizer = llama_tokenizer()
        tokenizer.add_tokens([AddedToken("the", normalized=False), AddedToken("<|im_end|>", normalized=False)])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
        check_json(f"added tokens, Metaspace {scheme}", tokenizer, [*texts, "<|im_end|> x<|im_end|>y", "the the"], directory,
                   decoded(tokenizer))


def check_sentencepiece(texts, directory):
    model = sentencepiece.SentencePieceProcessor(model_file=str(MODEL))
    directory.mkdir()
    shutil.copy(MODEL, directory / "tokenizer.model")
    decoded = lambda ids, text: model.decode(ids)
    check("tokenizer.model", directory, texts, model.encode, lambda text: [1, *model.encode(text)], decoded)
    config = {"add_bos_token": False, "add_eos_token": True,
              "added_tokens_decoder": {"1000": {"content": "<pad>", "special": True}}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    check("tokenizer.model with eos", directory, texts, model.encode, lambda text: [*model.encode(text), 2], decoded)
    (directory / "tokenizer_config.json").unlink()

    # A suffix continues a text: the library's encoding after <unk>, as in transformers 4.
    pairs = list(zip(texts, reversed(texts)))
    behind = len(model.encode("<unk>"))
    for (prefix, suffix), result in zip(pairs, ours(directory, pairs)):
        # Merges must not include the preceding piece.
        want = [1, 3, *model.encode(prefix), 4, *model.encode("<unk>" + suffix)[behind:], 5]
        assert model.encode("<unk>" + suffix)[:behind] == model.encode("<unk>"), suffix
        assert result["ids"] == want, f"infill {prefix!r} {suffix!r}\n ours {result['ids']}\n real {want}"
    print(f"infilling: {len(pairs)} pairs equal")


def check_transformers(texts, directory):
    """Opens with transformers a directory that transformers wrote."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(MODEL))
    vocab = {model.id_to_piece(i): i for i in range(model.vocab_size())}
    written = CodeLlamaTokenizer(vocab=vocab, merges=generate_merges(vocab))
    written.save_pretrained(directory)
    real = AutoTokenizer.from_pretrained(directory)
    plain = [text for text in texts if not re.search(r"<FILL_ME>|<s>|</s>|<unk>|▁<", text)]
    check("CodeLlama by transformers", directory, plain, lambda text: real.encode(text, add_special_tokens=False), real.encode,
          lambda ids, text: real.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    pairs = [("def f(x):\n  ", " return x\n"), ("a b", " c"), ("x", "  y z")]
    for (prefix, suffix), result in zip(pairs, ours(directory, pairs)):
        want = real.encode(prefix, suffix=suffix)
        assert result["ids"] == want, f"infill by transformers {prefix!r} {suffix!r}\n ours {result['ids']}\n real {want}"
    print(f"infilling by transformers: {len(pairs)} pairs equal")


def main():
    texts = random_texts(300)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_sentencepiece(texts, folder / "sentencepiece")
        check_byte_fallback(texts, folder / "fallback")
        check_transformers(texts, folder / "transformers")
        check_gpt2(texts, folder / "gpt2")
        check_byte_level(texts, folder / "bytes")


main()
