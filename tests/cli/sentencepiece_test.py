"""tokenizer.model gives the ids of the sentencepiece package: random models (user-defined pieces, spaces inside of pieces, normalizers) and
random texts. 20 models; FSDP_ALL=1: 100."""

import json
import random

import fsdp_cli
from tokens_cli import TokensCase, documents

with fsdp_cli.needed():
    import sentencepiece

MODELS = 100 if fsdp_cli.ALL else 20
PARTS = ["aa", "ab", "ba", "b", "c", "ccc", "é", "日本", "  ", "\t", "0", "12", "x_y", "Ω", "𝄞", "▁", "-", "--", "aaa", "aba"]
USERS = ["ab ", "  ", "▁▁", "aa", "x_y", "<x>", "aab", "b a", "日"]


class SentencePiece(TokensCase):
    def make_model(self, choice, folder):
        folder.mkdir()
        lines = ["".join(choice.choice(PARTS) + (" " if choice.random() < 0.4 else "") for _ in range(30)) for _ in range(300)]
        (folder / "texts").write_text("\n".join(lines), encoding="utf-8")
        users = choice.sample(USERS, choice.randint(0, 4))
        flag = lambda: choice.random() < 0.5  # noqa: E731
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "texts"), model_prefix=str(folder / "tokenizer"), vocab_size=choice.choice([300, 310, 340]), model_type="bpe",
            byte_fallback=True, character_coverage=choice.choice([1.0, 0.98]), user_defined_symbols=users,
            normalization_rule_name=choice.choice(["identity", "nmt_nfkc"]), remove_extra_whitespaces=flag(), add_dummy_prefix=flag(),
            split_digits=flag(), allow_whitespace_only_pieces=flag(), split_by_whitespace=flag(), hard_vocab_limit=False, minloglevel=3)
        return sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model")), users

    def test_random_models(self):
        choice = random.Random(7)
        for number in range(MODELS):
            folder = self.folder / f"model{number}"
            model, users = self.make_model(choice, folder)
            texts = ["".join(choice.choice([*PARTS, *users, "\n", "q", "ж", " ", "a", "b"]) for _ in range(choice.randint(0, 60))) for _ in range(300)]
            (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            result = fsdp_cli.run("fsdp-download", ["tokens", "--input", folder / "texts.jsonl", "--tokenizer", folder, "--output", folder / "ids.h5"])
            self.assertEqual(result.code, 0, str(result))
            for text, ids in zip(texts, documents(folder / "ids.h5"), strict=True):
                self.assertEqual(ids, [1, *model.encode(text)], (number, users, text))


if __name__ == "__main__":
    fsdp_cli.main()
