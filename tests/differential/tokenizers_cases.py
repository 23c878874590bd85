"""Random tokenizer.json files and texts: ids and decoded texts equal those of Hugging Face's tokenizers, or the file is
refused by name."""
import collections
import json
import random
import sys
import unicodedata

from tokenizers import Tokenizer

from answers import Answers, temporary_folder

BATCH = 16
OURS = Answers()
THEIRS = Answers(sys.executable, __file__)  # a process of its own, as the library may abort
FOLDER = temporary_folder()
SPACE = "\u2581"
counts = collections.Counter()

# Pieces of texts. Merges are made of the same characters, so that they apply.
LETTERS = list("abAe  \n'1.") + ["é", "日", "ß", "e\u0301"]
ODD = ["", "\u00a0", "\u3000", "\u180e", "\u0085", "\u200b", "\ufeff", "\t", "\r\n", "\0", "½", "²", "١", "Ⅷ", "ſ", "İ", "ﬁ", "ǆ", "Å", "\u212b", "한", "\u1112\u1161\u11ab", "👩‍👩‍👧", "🇩🇪",
       "\ufffd", "\U0010ffff", "\u0301", "\u0344", "が", "か\u3099", "don't", "I'LL", "12345", "a_b", "!!", "$+<", SPACE, "<0x0A>", "Ġ", "Ċ", "<s>", "</s>", "<unk>", "  \n  ", "\u2028", "\x1c", "-->", "ẞ", "ŉ"]
ADDED = ["<s>", "</s>", "<|x|>", "<x", "ab", " a", "a ", "é", "e\u0301", "日", SPACE, "\n", "  ", "b'", "A", "<unk>", "İ", "Ġa", "1", " "]
ATOMS = [r"\p{L}", r"\p{N}", r"\s", r"\S", r"\d", "a", "b", " ", r"\n", "'", r"[^\s\p{L}\p{N}]", r"[\r\n]", r"[a-e]", r"\p{Lu}", r"\p{Ll}", r"\p{M}", r"\p{P}", r"[\p{L}\p{M}]", r"[^\r\n]",
         r"\p{Han}", r"\p{S}", r"[^\s]", r"[\s']", r"é", r"\p{Zs}", r"\.", r"\p{Latin}", r"\P{L}", r"[^a]", r"\x{301}", r"\p{C}", r"\p{No}", r"\p{Hiragana}"]
RARE_ATOMS = [".", r"\w", "^", "$", r"\b", r"[[a-e]&&[^b]]", r"\h", r"\R", r"\X", r"[[:alpha:]]", r"\A", r"\z", r"\p{Alphabetic}", r"\p{Script=Greek}", r"\W", r"\u0061"]
PATTERNS = [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[0-9][0-9][0-9]",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}|\s+"]
BEHAVIORS = ["Isolated"] * 12 + ["Removed"] * 3 + [ "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def spelled_bytes():
    """Returns the characters that stand for the bytes 0 to 255 in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


SPELLED = spelled_bytes()


def random_regex(r, depth=0):
    if depth == 0 and r.random() < 0.3:
        return r.choice(PATTERNS)

    def atom():
        if depth < 2 and r.random() < 0.2:
            return r.choice(["(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "("]) + random_regex(r, depth + 1) + ")"
        return r.choice(RARE_ATOMS) if r.random() < 0.02 else r.choice(ATOMS)

    def repeated():
        return atom() + r.choice(["", "", "", "+", "*", "?", "{1,3}", "{2}", "{2,}", "+?", "*?", "++", "{1,2}?"] if r.random() < 0.6 else [""])

    return "|".join("".join(repeated() for _ in range(r.randint(1, 3))) for _ in range(r.choice([1, 1, 2, 3])))


def random_pattern(r):
    return {"Regex": random_regex(r)} if r.random() < 0.8 else {"String": r.choice([" ", "a", "ab", ". ", "\n", SPACE, "'", "$", "", "a b"])}


def random_merges(r, alphabet, count):
    pieces, merges = list(alphabet), []
    for _ in range(count):
        left, right = r.choice(pieces), r.choice(pieces)
        if len(left + right) > 24:
            continue
        merges.append([left, right])
        if left + right not in pieces:
            pieces.append(left + right)
    return merges


def random_added(r):
    tokens = []
    for name in r.sample(ADDED, r.choice([0, 0, 1, 2, 3, 5])):
        flag = lambda p=0.25: r.random() < p
        tokens.append({"content": name, "special": flag(0.5), "normalized": flag(0.4), "single_word": flag(), "lstrip": flag(), "rstrip": flag()})
    return tokens


def any_normalizer(r):
    return r.choice([{"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
                     {"type": "Strip", "strip_left": r.random() < 0.5, "strip_right": True}, {"type": "Prepend", "prepend": r.choice([SPACE, "a"])},
                     {"type": "Replace", "pattern": random_pattern(r), "content": r.choice([SPACE, "", " ", "ab"])},
                     {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": r.random() < 0.5}])


def any_pre_tokenizer(r):
    flag = r.random() < 0.5
    return r.choice([{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "UnicodeScripts"},
                     {"type": "CharDelimiterSplit", "delimiter": "a"}, {"type": "FixedLength", "length": 2},
                     {"type": "Digits", "individual_digits": flag}, {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)},
                     {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": r.choice(["always", "first", "never"]), "split": flag},
                     {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": flag}])


def as_steps(r, steps, kind):
    """Returns the steps as the file has them: null, one, or a Sequence."""
    if not steps and r.random() < 0.9:
        return None
    if len(steps) == 1 and r.random() < 0.7:
        return steps[0]
    return {"type": "Sequence", kind: steps}


def byte_level_case(r):
    symbols = [SPELLED[byte] for byte in "".join(LETTERS).encode()]
    normalizers = [{"type": "NFC"}] * r.choice([0, 0, 1]) if r.random() < 0.9 else [any_normalizer(r)]
    steps = []
    for _ in range(r.choice([0, 0, 1, 1, 2, 3])):
        kind = r.random()
        steps.append({"type": "Split", "pattern": random_pattern(r), "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.2} if kind < 0.7 else
                     {"type": "Digits", "individual_digits": r.random() < 0.5} if kind < 0.8 else
                     {"type": "Punctuation", "behavior": r.choice(BEHAVIORS)} if kind < 0.9 else any_pre_tokenizer(r))
    steps.insert(r.randint(0, len(steps)) if r.random() < 0.3 else len(steps),
                 {"type": "ByteLevel", "add_prefix_space": r.random() < 0.03, "trim_offsets": r.random() < 0.5, "use_regex": r.random() < 0.4})
    return {"alphabet": "bytes", "merges": random_merges(r, symbols, r.choice([0, 5, 30, 100])), "normalizer": as_steps(r, normalizers, "normalizers"),
            "pre_tokenizer": as_steps(r, steps, "pretokenizers"), 
            "model": {"ignore_merges": r.random() < 0.3}}


def any_decoder(r):
    return r.choice([None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
                     {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}, {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "ByteFallback"}, {"type": "Fuse"},
                     {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, {"type": "Strip", "content": "a", "start": 1, "stop": 0}])


def fallback_case(r):
    symbols = [c for c in "".join(LETTERS).replace(" ", SPACE) if r.random() < 0.8]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    kind = r.random()
    normalizers, steps = [], []
    if kind < 0.35:
        normalizers = [prepend, replace]
    elif kind < 0.5:
        normalizers = [replace]
        steps = [{"type": "Split", "pattern": {"String": " "}, "behavior": r.choice(BEHAVIORS), "invert": False}] if r.random() < 0.5 else []
    elif kind < 0.9:
        steps = [{"type": "Metaspace", "replacement": SPACE, "prepend_scheme": r.choice(["always", "first", "never"]), "split": r.random() < 0.5}]
        normalizers = [replace] if r.random() < 0.1 else []
    else:
        normalizers, steps = [any_normalizer(r) for _ in range(r.randint(0, 2))], [any_pre_tokenizer(r) for _ in range(r.randint(0, 2))]
    return {"alphabet": sorted(set(symbols)), "merges": random_merges(r, symbols + [SPACE], r.choice([0, 5, 30, 100])),
            "without_bytes": [r.randrange(256)] if r.random() < 0.05 else [], "normalizer": as_steps(r, normalizers, "normalizers"), "pre_tokenizer": as_steps(r, steps, "pretokenizers"),
            "model": {"byte_fallback": r.random() < 0.97, "fuse_unk": r.random() < 0.5, "unk_token": r.choice(["<unk>", "<unk>", None]), "ignore_merges": r.random() < 0.05}}


def other_model(r):
    """Returns a model that is no BPE; only the refusal matters."""
    words = {word: i for i, word in enumerate(["<unk>", "a", "b", "ab", "##b", SPACE])}
    return r.choice([{"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
                     {"type": "WordPiece", "vocab": words, "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
                     {"type": "Unigram", "vocab": [[word, -float(i)] for word, i in words.items()], "unk_id": 0, "byte_fallback": r.random() < 0.5}])


def random_text(r, case):
    names = [token["content"] for token in case["added"]]
    parts = []
    for _ in range(r.choice([1, 2, 4, 8, 16])):
        kind = r.random()
        if kind < 0.55:
            parts.append("".join(r.choice(LETTERS) for _ in range(r.randint(1, 6))))
        elif kind < 0.8:
            parts.append(r.choice(ODD))
        elif kind < 0.97 and names:
            parts.append(r.choice(names))
        elif kind > 0.98:
            code = r.randrange(r.choice([0x250, 0x3100, 0x20000]))
            parts.append("" if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(parts)


def template_of(r, names):
    marks = [name for name in ("<s>", "</s>") if r.random() < 0.6 and name in names]
    before, after = [{"SpecialToken": {"id": name, "type_id": 0}} for name in marks[:1]], [{"SpecialToken": {"id": name, "type_id": 0}} for name in marks[1:]]
    return {"type": "TemplateProcessing", "single": before + [{"Sequence": {"id": "A", "type_id": 0}}] + after,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": marks}


def generate(r):
    case = byte_level_case(r) if r.random() < 0.55 else fallback_case(r)
    if r.random() < 0.05:
        case["decoder"] = any_decoder(r)
    case.update(added=random_added(r), order=r.choice([0, 0, r.randrange(1, 1000)]), pieces=[])
    if r.random() < 0.1:
        case["pieces"] = r.sample(ADDED, 3)  # names of added tokens that are pieces of the vocabulary, too
    if r.random() < 0.04:
        case["other_model"] = other_model(r)
    if r.random() < 0.03:
        case["model"].update(r.choice([{"dropout": 0.1}, {"dropout": 0.0}, {"continuing_subword_prefix": "##"}, {"end_of_word_suffix": "</w>"}, {"continuing_subword_prefix": ""}]))
    names = [token["content"] for token in case["added"]] + ([] if case["alphabet"] == "bytes" else ["<s>", "</s>"])
    kind = r.random()
    case["post_processor"] = (None if kind < 0.4 else {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True} if kind < 0.5 else
                              template_of(r, names) if kind < 0.95 else
                              {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]} if kind < 0.97 else
                              {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": False})
    case["texts"] = [random_text(r, case) for _ in range(6)]
    # A model's ids: any, by number, and those of the bytes of a text.
    case["generated"] = [[r.randrange(10**6) if r.random() < 0.5 else r.choice(ODD + LETTERS) for _ in range(r.randint(1, 6))] for _ in range(3)]
    return case


def usual_decoder(case):
    """Returns the decoder that undoes the case's steps."""
    if case["alphabet"] == "bytes":
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    steps = json.dumps([case["normalizer"], case["pre_tokenizer"]])
    prefixed = '"Prepend"' in steps or '"Metaspace"' in steps and '"never"' not in steps
    decoders = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {"type": "Sequence", "decoders": decoders + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * prefixed}


def file_of(case):
    """Returns the tokenizer.json of a case."""
    if case["alphabet"] == "bytes":
        pieces = list(SPELLED)
    else:
        pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256) if byte not in case["without_bytes"]] + case["alphabet"] + [SPACE]
    pieces = list(dict.fromkeys([*pieces, *(left + right for left, right in case["merges"]), *case["pieces"]]))
    if case["order"]:
        random.Random(case["order"]).shuffle(pieces)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    added, ids = [], dict(vocab)
    for token in case["added"]:
        ids.setdefault(token["content"], len(ids))
        added.append({"id": ids[token["content"]], **token})
    added.sort(key=lambda token: token["id"])
    processor = case["post_processor"]
    if processor and processor["type"] == "TemplateProcessing":
        processor = {**processor, "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in processor["special_tokens"]}}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, **case["model"], "vocab": vocab, "merges": case["merges"]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": case["normalizer"], "pre_tokenizer": case["pre_tokenizer"],
            "post_processor": processor, "decoder": case.get("decoder", usual_decoder(case)), "model": case.get("other_model", model)}


def generated_ids(case, file):
    """Returns lists of ids, without those of names, and the id of a piece to begin with."""
    vocab, names = file["model"]["vocab"], {"<unk>", "<s>", "</s>", *(token["content"] for token in file["added_tokens"])}
    if "other_model" in case or case.get("decoder", usual_decoder(case)) != usual_decoder(case):
        return [], None
    ids = [i for piece, i in vocab.items() if piece not in names]
    first = next((i for piece, i in vocab.items() if piece.isascii() and piece.isalnum() and piece not in names), None)
    spelled = [SPELLED[byte] if case["alphabet"] == "bytes" else f"<0x{byte:02X}>" for byte in range(256)]
    of = lambda one: [ids[one % len(ids)]] if isinstance(one, int) else [vocab[spelled[byte]] for byte in one.encode() if vocab.get(spelled[byte]) in ids]
    return ([[i for one in some for i in of(one)] for some in case["generated"]], first) if first is not None else ([], None)


def answer(question):
    """Returns the library's answer to a question for answer_lines."""
    try:
        tokenizer = Tokenizer.from_file(question["tokenizer"])
    except BaseException as error:  # its panics are no Exceptions
        return {"refused": str(error)}
    answers = []
    for one in question["texts"]:
        try:
            tokenizer.encode_special_tokens = False
            marked = tokenizer.encode(one, add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            shown = [i for i in marked if i not in question["marks"]]
            answers.append({"ids": tokenizer.encode(one, add_special_tokens=False).ids, "marked": marked, "document": tokenizer.encode(one).ids,
                            "decoded": tokenizer.decode(shown, skip_special_tokens=False)})
        except Exception as error:
            answers.append({"fails": str(error)})
        except BaseException:
            answers.append({"panics": True})  # no answer to compare with
    # After a piece, as decoders may remove a space at the beginning.
    decoded = lambda ids: tokenizer.decode([question["first"], *ids], skip_special_tokens=False)
    return {"texts": answers, "generated": [decoded(ids)[len(decoded([])):] for ids in question["generated"]]}


def is_ambiguous(case):
    """True if two added tokens have one name after normalization: the library finds one or the other, by chance."""
    names = [unicodedata.normalize("NFC", token["content"]).replace(" ", SPACE) for token in case["added"] if token["normalized"]]
    return len(set(names)) < len(names)


def marks_of(case, file):
    """Returns the ids that decode to nothing: the beginning and end marks of Llama's kind."""
    return [token["id"] for token in file["added_tokens"] if token["content"] in ("<s>", "</s>")] if case["alphabet"] != "bytes" else []


def respelled_ids(file):
    """Returns the ids of added tokens that the library's decoders spell in another way than their names."""
    return {token["id"] for token in file["added_tokens"] if token["normalized"] or not token["content"].isascii() or token["content"].startswith(" ")}


def difference(case, number):
    try:
        file, texts = file_of(case), case["texts"]
        question = {"texts": texts, "marks": marks_of(case, file)}
        question["generated"], question["first"] = generated_ids(case, file)
        if is_ambiguous(case):
            return None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None  # a case that was made smaller than a file can be
    path = FOLDER / f"{number}.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    question["tokenizer"] = str(path)
    ours, real = OURS.ask(question), THEIRS.ask(question)
    if "died" in ours:
        return f"answer_lines died with {ours['died']}"
    if "refused" in ours and str(path) not in ours["refused"]:
        return f"a refusal that does not name the file: {ours['refused']}"
    verdict = "refused by " + " and ".join(who for who, said in (("ours", ours), ("theirs", real)) if "texts" not in said)
    counts["compared" if "texts" in ours and "texts" in real else verdict] += 1
    if "texts" not in ours or "texts" not in real:
        return None
    for text, mine, other in zip(texts, ours["texts"], real["texts"]):
        if "panics" in other:
            continue
        if "fails" in other:
            return f"only the library fails: {other['fails'].splitlines()[0]}\ntext {text!a}"
        for what in ("ids", "marked", "document", "decoded"):
            if mine[what] != other[what]:
                names = " names" if what == "decoded" and not respelled_ids(file).isdisjoint(mine["marked"]) else ""
                return f"{what}{names} differ\ntext {text!a}\nours {mine[what]!a}\nreal {other[what]!a}"
    for ids, mine, other in zip(question["generated"], ours["generated"], real["generated"]):
        if mine != other:
            return f"texts of generated ids differ\nids {ids}\nours {mine!a}\nreal {other!a}"
    return None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items())


KNOWN = [("added tokens decode to their names (docs/tokenizers.md)", lambda case, difference: difference.startswith("decoded names differ")),
         ("decoders are not read: ids are decoded to the text that they stand for (docs/tokenizers.md)",
          lambda case, difference: difference.startswith("decoded differ") and case.get("decoder", usual_decoder(case)) != usual_decoder(case))]

if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
