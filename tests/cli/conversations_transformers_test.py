"""Conversations with all kinds of characters: ids and masks equal those of the installed transformers."""

import json
import os
import random

import fsdp_cli
from conversations_cli import CHAT, TEMPLATES, ConversationsCase, tokenizer

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import transformers

# Decomposed and composed accents, Hangul in parts, combining marks in another order, white space that Python strips,
# marks, the sign that stands for a space, characters of up to four bytes.
PARTS = ["e\u0301", "é", "\u1112\u1161\u11ab", "q\u0323\u0307", "q\u0307\u0323", "\u212b", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u2028", "\x1f",
         "<|im_end|>", "<|eot_id|>", "</s>", "<s>", "<end_of_turn>", "<|im_start|>assistant\n", "\u2581", "♞", "🙂", "move", "e2e4", "12345", ".", "ß"]


def text(generator):
    return "".join(generator.choice(PARTS) for _ in range(generator.randrange(12)))


def conversations(generator, system, count):
    made = []
    for _ in range(count):
        messages = [{"role": "system", "content": text(generator)}] if system and generator.random() < 0.5 else []
        for _ in range(generator.randrange(1, 4)):
            messages += [{"role": "user", "content": text(generator)}, {"role": "assistant", "content": text(generator)}]
        made.append(messages)
    return made


class Transformers(ConversationsCase):
    def test_ids_and_masks(self):
        for name, truth in TEMPLATES.items():
            with self.subTest(name):
                opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(truth["vocabulary"]) / "tokenizer.json"),
                                                              bos_token=truth["bos"], eos_token=truth["eos"])
                chats = conversations(random.Random(name), name not in ("gemma", "mistral"), 60)
                wanted = []
                for chat in chats:
                    both = [opened.apply_chat_template(chat, chat_template=truth[key], return_dict=True, return_assistant_tokens_mask="with" in key)
                            for key in ("template", "template_with_generation")]
                    self.assertEqual(both[0]["input_ids"], both[1]["input_ids"])
                    wanted.append((both[1]["input_ids"], both[1]["assistant_masks"]))
                result = self.tokens(self.write([json.dumps({"messages": chat}) for chat in chats]), truth["vocabulary"], "--chat-template", name, "--json")
                found = self.samples()
                self.assertEqual((result.json()["skipped"], len(found)), (0, len(wanted)))
                for chat, ours, theirs in zip(chats, found, wanted):
                    self.assertEqual(ours, theirs, chat)

    def test_templates_of_models_on_the_hub_write_the_same(self):
        """Templates with branches for tools and content parts; the trainer recognises each template by its text."""
        files = sorted((CHAT / "templates").glob("*-hub*.jinja"))
        self.assertEqual(len(files), 4)
        for file in files:
            with self.subTest(file.name):
                truth = TEMPLATES[file.name.partition("-")[0]]
                opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(truth["vocabulary"]) / "tokenizer.json"),
                                                              bos_token=truth["bos"], eos_token=truth["eos"])
                chats = conversations(random.Random(file.name), True, 60)
                wanted = [opened.apply_chat_template(chat, chat_template=file.read_text(), return_dict=True)["input_ids"] for chat in chats]
                result = self.tokens(self.write([json.dumps({"messages": chat}) for chat in chats]), truth["vocabulary"], "--chat-template", file, "--json")
                self.assertEqual((result.json()["skipped"], [ids for ids, _ in self.samples()]), (0, wanted))


if __name__ == "__main__":
    fsdp_cli.main()
