"""fsdp-eval --chat without a prompt: a conversation by lines of a pipe, and on a terminal. Each turn's ids are those of transformers' chat template."""

import fcntl
import json
import os
import pty
import re
import select
import subprocess
import termios
import time

import fsdp_cli
from conversations_cli import TEMPLATES, tokenizer

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import torch
    import transformers

transformers.utils.logging.disable_progress_bar()
TRUTH = TEMPLATES["chatml"]


def make_model(folder, positions=256, **more):
    """A random Llama that says other things from token to token; its end marks are in generation_config.json."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(vocab_size=1008, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                      max_position_embeddings=positions, bos_token_id=1, eos_token_id=None, initializer_range=0.4, **more)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "generation_config.json").write_text("{}")
    return folder


class Chat(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = make_model(cls.folder / "model")
        cls.opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer(TRUTH["vocabulary"]) / "tokenizer.json"), bos_token=TRUTH["bos"],
                                                          eos_token=TRUTH["eos"])

    def arguments(self, *more, model=None):
        return [model or self.model, "--tokenizer", tokenizer(TRUTH["vocabulary"]), "--chat", "--chat-template", "chatml", "--temperature", 0, *fsdp_cli.COMMON,
                *more]

    def chat(self, lines, *more, ranks=0, code=0, model=None):
        """Gives the lines to stdin as a pipe."""
        line = fsdp_cli.command("fsdp-eval", self.arguments(*more, model=model), ranks)
        text = lines if isinstance(lines, bytes) else "".join(f"{each}\n" for each in lines).encode()
        done = subprocess.run(line, input=text, capture_output=True, env=fsdp_cli.environment(), timeout=90, check=False)
        result = fsdp_cli.Result(line, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
        self.assertEqual(result.code, code, str(result))
        return result

    def turns(self, lines, *more, **how):
        return self.chat(lines, "--json", *more, **how).json()["conversation"]

    def ids(self, *messages):
        roles = ({"role": role, "content": content} for role, content in messages)
        return self.opened.apply_chat_template(list(roles), chat_template=TRUTH["template"], add_generation_prompt=True)["input_ids"]

    def test_turns_are_those_of_transformers(self):
        first, second = self.turns(["What is a fork?", "", "And a pin, 東京 🎭?"], "--num-tokens", 9, "--system", "Be brief.")
        system = ("system", "Be brief.")
        self.assertEqual(first["prompt_tokens"], self.ids(system, ("user", "What is a fork?")))
        self.assertEqual(second["prompt_tokens"],
                         self.ids(system, ("user", "What is a fork?"), ("assistant", first["text"]), ("user", "And a pin, 東京 🎭?")))
        model = transformers.AutoModelForCausalLM.from_pretrained(self.model)
        for turn in (first, second):
            self.assertEqual((len(turn["tokens_generated"]), turn["ended"]), (9, "length"))
            # The second turn goes on from what is cached of the first.
            truth = model.generate(torch.tensor([turn["prompt_tokens"]]), max_new_tokens=9, do_sample=False, pad_token_id=0)
            self.assertEqual(turn["tokens_generated"], truth[0, len(turn["prompt_tokens"]):].tolist())

    def test_answers_alone_on_stdout_and_the_same_on_any_rank_count(self):
        lines = ["Hi", "/help", "/nothing", "Again", "//quit"]
        alone = self.chat(lines, "--num-tokens", 7)
        said = [turn["text"] for turn in self.turns(lines, "--num-tokens", 7)]
        self.assertEqual(len(said), 3)
        self.assertEqual(alone.out, "".join(f"{text}\n" for text in said))
        for word in ("/reset", "/system", "no command /nothing", "--num-tokens"):
            self.assertIn(word, alone.err)
        self.assertNotIn("> ", alone.err)
        for ranks in (1, 2, 3):
            self.assertEqual(self.chat(lines, "--num-tokens", 7, ranks=ranks).out, alone.out)

    def test_commands(self):
        turns = self.turns(["One", "/reset", "One", "/system Be  kind.", "Two", "/system", "/reset", "One", "/quit", "never"], "--num-tokens", 5)
        self.assertEqual([turn["user"] for turn in turns], ["One", "One", "Two", "One"])
        for again in (1, 3):
            self.assertEqual(turns[again]["prompt_tokens"], turns[0]["prompt_tokens"])
            self.assertEqual(turns[again]["tokens_generated"], turns[0]["tokens_generated"])
        self.assertEqual(turns[2]["prompt_tokens"], self.ids(("system", "Be  kind."), ("user", "One"), ("assistant", turns[1]["text"]), ("user", "Two")))

    def test_the_end_of_a_turn(self):
        """By the end marks of generation_config.json and by --stop; neither is shown or kept."""
        free = self.turns(["Hi"], "--num-tokens", 12)[0]
        tokens = free["tokens_generated"]
        at = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
        model = make_model(self.folder / "ends")
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1007, tokens[at]]}))
        first, second = self.turns(["Hi", "More"], model=model)
        self.assertEqual((first["tokens_generated"], first["ended"]), (tokens[: at + 1], "eos"))
        self.assertEqual(first["text"], self.turns(["Hi"], "--num-tokens", at)[0]["text"])
        self.assertEqual(second["prompt_tokens"], self.ids(("user", "Hi"), ("assistant", first["text"]), ("user", "More")))
        text = free["text"]
        stop = text[2:4]
        stopped = self.turns(["Hi"], "--num-tokens", 12, "--stop", "never there", "--stop", stop)[0]
        self.assertEqual((stopped["text"], stopped["ended"]), (text[: text.index(stop)], "stop"))

    def test_the_context(self):
        """256 positions: the oldest turns are dropped with a line, and a message that has no room is not sent."""
        model = self.model
        question = "word " * 12
        result = self.chat([question] * 4, "--num-tokens", 60, "--system", "Stay.", "--json", model=model)
        turns = result.json()["conversation"]
        self.assertEqual(len(turns), 4)
        self.assertTrue(any(turn["messages_dropped"] for turn in turns), turns)
        for i, turn in enumerate(turns):
            self.assertLessEqual(len(turn["prompt_tokens"]) + 60, 256)
            if not turn["messages_dropped"]:
                continue
            self.assertIn("dropped", result.err)
            kept, before = [], i
            while self.ids(("system", "Stay."), *kept, ("user", question)) != turn["prompt_tokens"]:
                before -= 1
                self.assertGreaterEqual(before, 0, "the prompt is the system message, some of the last turns, and the message")
                kept = [("user", question), ("assistant", turns[before]["text"]), *kept]
        long = self.chat(["Hi", "word " * 400, "Hi"], "--num-tokens", 5, "--json")
        self.assertIn("256", long.err)
        self.assertIn("not sent", long.err)
        first, second = long.json()["conversation"]
        self.assertEqual(second["prompt_tokens"], self.ids(("user", "Hi"), ("assistant", first["text"]), ("user", "Hi")))
        # Without --num-tokens an answer may have all positions that are left.
        whole = self.turns(["Hi"])[0]
        self.assertEqual((len(whole["prompt_tokens"]) + len(whole["tokens_generated"]), whole["ended"]), (256, "context"))

    def test_what_cannot_be(self):
        self.assertIn("UTF-8", self.chat(b"\xff\xfe\nHi\n", "--num-tokens", 2).err)
        self.assertEqual(self.chat(b"no line end", "--num-tokens", 2).out.count("\n"), 1)
        for more, word in ((["--data", self.val_data], "--prompt"), (["--compare", self.model, self.model], "--compare"), (["--output", "x"], "--prompts"),
                           (["--stop", ""], "--stop"), (["--num-tokens", -1], "--num-tokens")):
            result = fsdp_cli.run("fsdp-eval", [*(self.arguments(*more)[1:] if "--compare" in more else self.arguments(*more))])
            self.assert_refused(result, 2, word)

    def test_a_terminal(self):
        """Ctrl-C ends an answer and then the program; what is written stays in the conversation."""
        endless = make_model(self.folder / "endless", positions=100000)
        for last, code in ((b"\x04", 0), (b"/quit\n", 0), (b"\x03", -2)):
            with self.subTest(last=last):
                terminal, of_program = pty.openpty()
                line = fsdp_cli.command("fsdp-eval", self.arguments(model=endless), 0)

                def own_terminal(descriptor=of_program):
                    os.setsid()
                    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)

                process = subprocess.Popen(line, stdin=of_program, stdout=of_program, stderr=of_program, env=fsdp_cli.environment(), preexec_fn=own_terminal)
                os.close(of_program)
                self.addCleanup(process.wait)
                self.addCleanup(process.kill)
                seen = b""

                def wait_for(condition):
                    nonlocal seen
                    end = time.monotonic() + 60
                    while not condition(seen):
                        self.assertLess(time.monotonic(), end, seen)
                        if select.select([terminal], [], [], 1)[0]:
                            seen += os.read(terminal, 65536)

                wait_for(lambda text: b"/help" in text and text.endswith(b"> "))
                for _ in range(2):
                    seen = b""
                    os.write(terminal, b"Hi\n")
                    wait_for(lambda text: len(text) > 200)
                    self.assertIsNone(process.poll())
                    os.write(terminal, b"\x03")
                    wait_for(lambda text: re.search(rb"\n> $", text))
                os.write(terminal, last)
                self.assertEqual(process.wait(timeout=30), code)
                os.close(terminal)


if __name__ == "__main__":
    fsdp_cli.main()
