"""Shared by the tests of conversations and completions: ids and labels from transformers."""

import json

import fsdp_cli
import tokens_cli

h5py = fsdp_cli.h5py
CHAT = fsdp_cli.folder("FSDP_FIXTURES") / "chat"
EXPECTED = json.loads((CHAT / "expected.json").read_text())
TEMPLATES = EXPECTED["templates"]
PAIRS = EXPECTED["prompt_completion"]
LINES = (CHAT / "messages.jsonl").read_text().splitlines()


def accepted(template):
    """Returns the conversations that the template supports."""
    return [c for c in TEMPLATES[template]["conversations"] if "error" not in c]


def mask_of(labels):
    return [int(label != -100) for label in labels]


def tokenizer(vocabulary):
    return CHAT / "tokenizers" / vocabulary


def with_answer(template):
    """Returns the lines of all conversations in the template's batch."""
    return [LINES[c["index"]] for c in accepted(template) if max(c["labels"]) >= 0]


class ConversationsCase(fsdp_cli.Case):
    def write(self, lines, name="in.jsonl"):
        path = self.folder / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    def tokens(self, data, vocabulary, *more, code=0, name="out.h5"):
        output = self.folder / name
        output.unlink(missing_ok=True)
        result = fsdp_cli.run("fsdp-download", ["tokens", "--input", data, "--tokenizer", tokenizer(vocabulary) if isinstance(vocabulary, str) else vocabulary,
                                                "--output", output, *more])
        self.assertEqual(result.code, code, str(result))
        return result

    def samples(self, name="out.h5"):
        """Returns ids and mask of every document."""
        content = tokens_cli.read(self.folder / name)
        offsets = content["offsets"]
        self.assertEqual(content["loss_mask"].dtype, "uint8")
        return [(content["tokens"][a:b].tolist(), content["loss_mask"][a:b].tolist()) for a, b in zip(offsets, offsets[1:])]

    def refused(self, lines, vocabulary, code, *words, options=()):
        data = self.write(lines, "refused.jsonl") if isinstance(lines, list) else lines
        result = self.tokens(data, vocabulary, *options, code=code, name="refused.h5")
        self.assert_refused(result, code, *words)
        self.assertFalse((self.folder / "refused.h5").exists())
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.endswith(".tmp")], [])
        return result
