"""fsdp-eval --prompts: many texts at once are those of one at a time and of transformers; a run goes on after what is written."""

import json
import os

import fsdp_cli
from conversations_cli import TEMPLATES, tokenizer
from eval_chat_test import make_model

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import torch
    import transformers

TRUTH = TEMPLATES["chatml"]
TEXTS = ["e2e4", "What is a fork?", "a", "Où est naïve 東京 🎭? " * 3, "one two three", "x " * 40, "ROMEO:", "e2e4 e7e5", "b", "Hello, world.", "z z"]


class Prompts(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = make_model(cls.folder / "model")
        cls.file = cls.write("prompts.jsonl", [{"prompt": text} for text in TEXTS])

    @classmethod
    def write(cls, name, records):
        path = cls.folder / name
        path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
        return path

    def run_prompts(self, *more, ranks=0, code=0, file=None):
        result = fsdp_cli.run("fsdp-eval", [self.model, "--tokenizer", tokenizer(TRUTH["vocabulary"]), "--prompts", file or self.file, *fsdp_cli.COMMON, *more],
                              ranks)
        self.assertEqual(result.code, code, str(result))
        return result

    def results(self, *more, **how):
        """Returns the results on stdout by the number of their prompt."""
        lines = [json.loads(line) for line in self.run_prompts(*more, **how).out.splitlines()]
        found = {line["index"]: line for line in lines}
        self.assertEqual(len(found), len(lines))
        return [found[i] for i in range(len(found))]

    def test_greedy_texts_are_those_of_transformers(self):
        found = self.results("--temperature", 0, "--num-tokens", 20, "--batch-size", 4)
        opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(TRUTH["vocabulary"]) / "tokenizer.json"))
        model = transformers.AutoModelForCausalLM.from_pretrained(self.model)
        for text, result in zip(TEXTS, found, strict=True):
            ids = opened(text, add_special_tokens=True)["input_ids"]
            alone = self.evaluate(self.model, "--tokenizer", tokenizer(TRUTH["vocabulary"]), "--prompt", text, "--temperature", 0, "--num-tokens", 20)
            self.assertEqual(alone["prompt_tokens"], ids)
            self.assertEqual(result["tokens_generated"], model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, pad_token_id=0)[0, len(ids):].tolist())
            self.assertEqual([result[key] for key in ("tokens_generated", "text", "ended")], [alone[key] for key in ("tokens_generated", "text", "ended")])

    def test_any_batch_and_rank_count_gives_the_same(self):
        for options in (["--temperature", 0], ["--temperature", 0.9, "--top-k", 50, "--seed", 3]):
            expected = self.results(*options, "--num-tokens", 12, "--batch-size", 1)
            self.assertEqual([len(result["tokens_generated"]) for result in expected], [12] * len(TEXTS))
            for batch, ranks in ((3, 0), (32, 0), (2, 2), (1, 3)):
                self.assertEqual(self.results(*options, "--num-tokens", 12, "--batch-size", batch, ranks=ranks), expected)
        # Drawn texts have seeds of their own.
        same = self.write("same.jsonl", [{"prompt": "e2e4"}] * 3)
        self.assertEqual(len({result["text"] for result in self.results("--num-tokens", 12, "--seed", 3, file=same)}), 3)

    def test_other_names_and_stop_texts(self):
        whole = self.results("--temperature", 0, "--max_new_tokens", 15)
        self.assertEqual(whole, self.results("--temperature", 0, "--max-new-tokens", 15))
        stop = whole[3]["text"][3:6]
        for text, result in zip(whole, self.results("--temperature", 0, "--num-tokens", 15, "--stop", stop, "--batch-size", 3)):
            self.assertEqual(result["text"], text["text"].partition(stop)[0])
            self.assertEqual(result["ended"], "stop" if stop in text["text"] else "length")

    def test_messages_ids_and_keys_that_are_not_read(self):
        opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(TRUTH["vocabulary"]) / "tokenizer.json"), bos_token=TRUTH["bos"],
                                                      eos_token=TRUTH["eos"])
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                    {"role": "user", "content": "What is a fork?"}]
        file = self.write("messages.jsonl", [{"id": "a", "messages": messages, "answer": "x"}, "", {"prompt": "Hi", "id": 7, "source": 1}])
        output = self.folder / "messages.out"
        report = json.loads(self.run_prompts("--chat-template", "chatml", "--temperature", 0, "--num-tokens", 6, "--output", output, "--json", file=file).out)
        lines = {line["id"]: line for line in map(json.loads, output.read_text().splitlines())}
        self.assertEqual({line["index"] for line in lines.values()}, {0, 1})
        self.assertEqual(report["ignored"][str(file)], ["answer", "source"])
        self.assertEqual((report["prompts"]["written"], report["prompts"]["done_before"]), (2, 0))
        ids = opened.apply_chat_template(messages, chat_template=TRUTH["template"], add_generation_prompt=True)["input_ids"]
        model = transformers.AutoModelForCausalLM.from_pretrained(self.model)
        self.assertEqual(lines["a"]["tokens_generated"], model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, pad_token_id=0)[0, len(ids):].tolist())
        # With --chat a prompt is a question.
        asked = self.results("--chat", "--system", "Be brief.", "--chat-template", "chatml", "--temperature", 0, "--num-tokens", 6,
                             file=self.write("asked.jsonl", [{"prompt": "Hi"}]))[0]
        alone = self.evaluate(self.model, "--tokenizer", tokenizer(TRUTH["vocabulary"]), "--chat", "--system", "Be brief.", "--chat-template", "chatml",
                              "--temperature", 0, "--num-tokens", 6, "--prompt", "Hi")
        self.assertEqual(asked["tokens_generated"], alone["tokens_generated"])

    def test_a_run_goes_on(self):
        output = self.folder / "out.jsonl"
        options = ["--temperature", 0, "--num-tokens", 8, "--output", output, "--batch-size", 2]
        self.run_prompts(*options)
        whole = output.read_text().splitlines(keepends=True)
        self.assertEqual(len(whole), len(TEXTS))

        def rerun(text, written, *more):
            output.write_text(text)
            report = json.loads(self.run_prompts(*options, "--json", *more).out)
            self.assertEqual((report["prompts"]["written"], report["prompts"]["done_before"]), (written, len(TEXTS) - written))
            self.assertEqual(sorted(output.read_text().splitlines(keepends=True)), sorted(whole))

        rerun("".join(whole), 0)
        rerun("".join(whole[2:5]), len(TEXTS) - 3)
        for cut in (1, 9, len(whole[5]) - 1):  # killed while it wrote
            rerun("".join(whole[:5]) + whole[5][:cut], len(TEXTS) - 5)
        rerun("".join(whole[:4]), len(TEXTS) - 4, "--batch-size", 5)

        kept = "".join(whole[:4])
        for options_now, file, words in ((["--num-tokens", 9], None, ["line 1", "--overwrite"]),
                                         ([], self.write("other.jsonl", [{"prompt": text + "!"} for text in TEXTS]), ["line 1", "--overwrite"]),
                                         ([], self.write("fewer.jsonl", [{"prompt": TEXTS[0]}]), ["--overwrite"])):
            output.write_text(kept)
            self.assert_refused(self.run_prompts(*options, *options_now, code=4, file=file), 4, output, *words)
            self.assertEqual(output.read_text(), kept)
        for text, word in (("something else\n", "line 1"), (kept + "notes", "line 5"), (kept + whole[0], "line 5"), (kept + "\n", "line 5")):
            output.write_text(text)
            self.assert_refused(self.run_prompts(*options, code=4), 4, output, word)
            self.assertEqual(output.read_text(), text)
        self.run_prompts(*options, "--overwrite")
        self.assertEqual(sorted(output.read_text().splitlines(keepends=True)), sorted(whole))

    def test_what_cannot_be(self):
        for line, words in (("{", ["line 2", "JSON"]), ([], ["line 2", "object"]), ({"text": "a"}, ["line 2", "prompt", "messages"]),
                            ({"prompt": "a", "messages": []}, ["line 2", "both"]), ({"prompt": 1}, ["line 2", "prompt"]),
                            ({"prompt": "a", "id": 1.5}, ["line 2", "id"]), ({"prompt": "a", "id": "first"}, ["line 2", "first"]),
                            ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, ["line 2", "answer"]),
                            ({"messages": []}, ["line 2"])):
            file = self.write("bad.jsonl", [{"prompt": "a", "id": "first"}, line if isinstance(line, str) else json.dumps(line)])
            self.assert_refused(self.run_prompts("--chat-template", "chatml", code=4, file=file), 4, "bad.jsonl", *words)
        self.assert_refused(self.run_prompts(code=4, file=self.write("empty.jsonl", [])), 4, "empty.jsonl")
        for more, word in ((["--json"], "--output"), (["--prompt", "a"], "--prompts"), (["--overwrite"], "--output"), (["--stop", ""], "--stop"),
                           (["--batch-size", 0], "--batch-size")):
            self.assert_refused(self.run_prompts(*more, code=2), 2, word)


if __name__ == "__main__":
    fsdp_cli.main()
