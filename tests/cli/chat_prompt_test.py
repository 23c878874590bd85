"""fsdp-eval --prompt --chat: ids equal those of transformers' apply_chat_template(add_generation_prompt=True), up to the end of the turn."""

import json
import os
import shutil

import fsdp_cli
from conversations_cli import CHAT, TEMPLATES, tokenizer

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import transformers

PROMPT = "  What is a fork, e2e4\n<|im_start|>?  "
SYSTEM = "Be  brief.\n"
ENDS = {"llama3": "<|eot_id|>", "llama2": "</s>", "mistral": "</s>", "gemma": "<end_of_turn>", "gemma3": "<end_of_turn>"}


class ChatPrompt(fsdp_cli.Case):
    def chat(self, name, *more, code=0):
        truth = TEMPLATES[name]
        return self.evaluate(CHAT / "model", "--tokenizer", tokenizer(truth["vocabulary"]), "--prompt", PROMPT, "--chat", "--num-tokens", 2, "--temperature", 0,
                             *more, code=code)

    def test_ids_are_those_of_transformers(self):
        for name, truth in TEMPLATES.items():
            opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(truth["vocabulary"]) / "tokenizer.json"), bos_token=truth["bos"],
                                                          eos_token=truth["eos"])
            for system in ([], [SYSTEM], [""]) if name in ("qwen2", "llama2", "gemma3") else ([],):
                with self.subTest(template=name, system=system):
                    messages = [{"role": "system", "content": text} for text in system] + [{"role": "user", "content": PROMPT}]
                    wanted = opened.apply_chat_template(messages, chat_template=truth["template"], add_generation_prompt=True)["input_ids"]
                    report = self.chat(name, "--chat-template", name, *(["--system", *system] if system else []))
                    self.assertEqual(report["prompt_tokens"], wanted)
                    self.assertLessEqual(wanted.count(opened.bos_token_id), 1)
                    self.assertEqual(report["prompt"], PROMPT)

    def test_the_end_of_the_turn_ends_the_text(self):
        """The head always predicts the end-of-turn mark, which differs from the tokenizer's end mark."""
        import torch
        from safetensors.torch import load_file, save_file
        for name in ("chatml", "llama3"):
            with self.subTest(name):
                model = self.folder / name
                shutil.copytree(CHAT / "model", model, copy_function=shutil.copyfile)
                truth = TEMPLATES[name]
                opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(truth["vocabulary"]) / "tokenizer.json"))
                end = opened.convert_tokens_to_ids(ENDS.get(name, "<|im_end|>"))
                weights = load_file(model / "model.safetensors")
                config = json.loads((model / "config.json").read_text())
                (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
                # Only the row of the mark is not zero; for one of its two signs the logit after this prompt is positive.
                weights["lm_head.weight"] = torch.zeros_like(weights["model.embed_tokens.weight"])
                report = None
                for sign in (1, -1):
                    weights["lm_head.weight"][end] = sign * 10
                    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
                    report = self.evaluate(model, "--tokenizer", tokenizer(truth["vocabulary"]), "--prompt", "Hi", "--chat", "--chat-template", name,
                                           "--num-tokens", 5, "--temperature", 0)
                    if report["tokens_generated"][0] == end:
                        break
                self.assertEqual((report["ended"], report["tokens_generated"], report["text"]), ("eos", [end], ""))

    def test_the_tokenizers_own_template_and_what_cannot_be(self):
        own = self.folder / "own"
        shutil.copytree(tokenizer("chatml"), own, copy_function=shutil.copyfile)
        (own / "chat_template.jinja").write_text(TEMPLATES["chatml"]["template"])
        expected = self.chat("chatml", "--chat-template", "chatml")
        for more in ([], ["--chat-template", "auto"], ["--chat-template", own / "chat_template.jinja"]):
            report = self.chat("chatml", "--tokenizer", own, *more)
            self.assertEqual(report["prompt_tokens"], expected["prompt_tokens"])
        self.assert_refused(self.chat("gemma", "--chat-template", "gemma", "--system", "x", code=4), 4, "gemma", "System role not supported")
        self.assert_refused(self.chat("chatml", "--chat-template", "gemma", code=4), 4, "<end_of_turn>", "--chat-template")
        (own / "chat_template.jinja").write_text("{% if messages %}")
        self.assert_refused(self.chat("chatml", "--tokenizer", own, code=4), 4, "chat_template.jinja", "line 1")
        for arguments, word in ((["--system", "x", "--prompt", "a"], "--chat"), (["--chat", "--data", CHAT / "messages.jsonl"], "--prompt")):
            self.assert_refused(self.evaluate(CHAT / "model", *arguments, code=2), 2, word)


if __name__ == "__main__":
    fsdp_cli.main()
