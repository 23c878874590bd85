"""Conversations and completions to token files: ids and masks equal those of transformers; forms of data; refusals."""

import json
import resource
import signal

import fsdp_cli
from conversations_cli import CHAT, LINES, PAIRS, TEMPLATES, ConversationsCase, accepted, h5py, mask_of, tokenizer

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}


class IdsAndMasks(ConversationsCase):
    def test_every_conversation_of_every_template(self):
        for name, truth in TEMPLATES.items():
            with self.subTest(name):
                wanted = accepted(name)
                self.tokens(self.write([LINES[c["index"]] for c in wanted]), truth["vocabulary"], "--chat-template", name)
                self.assertEqual(self.samples(), [(c["ids"], mask_of(c["labels"])) for c in wanted])
                with h5py.File(self.folder / "out.h5") as file:
                    self.assertEqual((file.attrs["chat_template"], file.attrs["train_on"]), (name, "answers"))

    def test_what_a_template_has_no_place_for(self):
        for name, truth in TEMPLATES.items():
            for conversation in truth["conversations"]:
                if "error" not in conversation:
                    continue
                with self.subTest(name, index=conversation["index"]):
                    self.refused([LINES[0], LINES[conversation["index"]]], truth["vocabulary"], 4, "refused.jsonl: line 2: the chat template ", f"'{name}', line ", ": the template refuses it: ",
                                 options=["--chat-template", name])

    def test_marks_inside_messages_as_plain_text(self):
        for name, truth in TEMPLATES.items():
            for conversation in accepted(name):
                plain = conversation.get("ids_if_marks_in_messages_are_plain_text")
                if plain is None:
                    continue
                with self.subTest(name):
                    self.tokens(self.write([LINES[conversation["index"]]]), truth["vocabulary"], "--chat-template", name, "--marks", "plain")
                    ids, mask = self.samples()[0]
                    self.assertEqual(ids, plain)
                    self.assertNotEqual(ids, conversation["ids"])
                    # The trained ids end with the end mark, which occurs only there.
                    learned = [i for i, counts in zip(ids, mask) if counts]
                    end = [i for i, label in zip(conversation["ids"], conversation["labels"]) if label != -100][-1]
                    self.assertEqual((learned[-1], learned.count(end)), (end, 1))

    def test_prompts_and_completions(self):
        for name, truth in PAIRS.items():
            for how in ("joint", "separate"):
                with self.subTest(name, how=how):
                    self.tokens(CHAT / "prompt_completion.jsonl", name, "--pairs", how)
                    self.assertEqual(self.samples(), [(pair[how]["ids"], mask_of(pair[how]["labels"])) for pair in truth["pairs"]])
            with h5py.File(self.folder / "out.h5") as file:
                self.assertNotIn("chat_template", file.attrs)

    def test_all_tokens(self):
        truth = TEMPLATES["chatml"]
        self.tokens(CHAT / "messages.jsonl", "chatml", "--train-on", "all")
        with h5py.File(self.folder / "out.h5") as file:
            self.assertNotIn("loss_mask", file)
            self.assertEqual(file["tokens"][:].tolist(), sum((c["ids"] for c in truth["conversations"]), []))
            self.assertEqual((file.attrs["chat_template"], file.attrs["train_on"]), ("tokenizer", "all"))

    def test_packed_rows_carry_the_mask(self):
        truth = TEMPLATES["chatml"]["conversations"]
        result = self.tokens(CHAT / "messages.jsonl", "chatml", "--seq-len", 50, "--json")
        ids = sum((c["ids"] for c in truth), [])
        mask = sum((mask_of(c["labels"]) for c in truth), [])
        self.assertEqual((result.json()["layout"], result.json()["counted_tokens"]), ("rows", sum(mask)))
        with h5py.File(self.folder / "out.h5") as file:
            rows = len(ids) // 51
            self.assertEqual(file["input_ids"][:].ravel().tolist(), ids[:rows * 50])
            self.assertEqual((file["loss_mask"].shape, file["loss_mask"][:].ravel().tolist()), ((rows, 50), mask[:rows * 50]))

    def test_threads_do_not_change_the_bytes(self):
        data = self.write(LINES * 700)
        for threads in (1, 3):
            self.tokens(data, "chatml", "--threads", threads, name=f"threads-{threads}.h5")
        self.assertEqual(*((self.folder / f"threads-{n}.h5").read_bytes() for n in (1, 3)))


class Templates(ConversationsCase):
    def test_the_tokenizers_own(self):
        for vocabulary in ("chatml", "llama3", "llama2", "gemma"):
            with self.subTest(vocabulary):
                result = self.tokens(self.write([LINES[0]]), vocabulary, "--json")
                self.assertEqual(result.json()["chat_template"], "tokenizer")
                own = self.samples()
                self.tokens(self.write([LINES[0]]), vocabulary, "--chat-template", vocabulary)
                self.assertEqual(self.samples(), own)

    def own(self, name, config=None, jinja=None):
        """A ChatML tokenizer whose own template differs."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "tokenizer.json").write_bytes((tokenizer("chatml") / "tokenizer.json").read_bytes())
        settings = json.loads((tokenizer("chatml") / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **(config or {})}))
        if jinja is not None:
            (folder / "chat_template.jinja").write_bytes(jinja.encode())
        return folder

    def taken(self, folder, *options):
        self.tokens(self.write([LINES[0]]), folder, *options)
        return self.samples()

    def test_where_it_is_looked_for(self):
        texts = {name: (TEMPLATES[name]["template"], TEMPLATES[name]["template_with_generation"]) for name in TEMPLATES}
        by_name = {name: self.taken(tokenizer("chatml"), "--chat-template", name) for name in ("chatml", "qwen2", "qwen2.5")}
        self.assertEqual(len({str(samples) for samples in by_name.values()}), 3)
        self.assertEqual(self.taken(self.own("jinja", {"chat_template": texts["chatml"][0]}, texts["qwen2"][1])), by_name["qwen2"])
        self.assertEqual(self.taken(self.own("windows", jinja=texts["qwen2"][0].replace("\n", "\r\n") + "\r\n")), by_name["qwen2"])
        several = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "default", "template": texts["qwen2.5"][1]}]
        own = self.own("several", {"chat_template": several})
        self.assertEqual(self.taken(own), by_name["qwen2.5"])
        for asked in ("chatml", tokenizer("chatml") / "tokenizer_config.json", tokenizer("chatml")):
            self.assertEqual(self.taken(own, "--chat-template", asked), by_name["chatml"])
        for name, wordings in texts.items():
            for text in wordings:
                file = self.folder / "template.jinja"
                file.write_text(text)
                result = self.tokens(self.write([LINES[0]]), TEMPLATES[name]["vocabulary"], "--chat-template", file, "--json")
                self.assertEqual(result.json()["chat_template"], str(file))
                found = self.samples()
                self.tokens(self.write([LINES[0]]), TEMPLATES[name]["vocabulary"], "--chat-template", name)
                self.assertEqual(self.samples(), found)

    def test_any_template(self):
        """Tools and reasoning reach the template; what it leaves out or does not tell apart is refused."""
        source = ("{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.reasoning_content or '') ~ (m.content or '') ~ (m.tool_calls | tojson if m.tool_calls) "
                  "~ '<|im_end|>\\n' }}{% endfor %}{{ tools | tojson }}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
        own = self.own("tools", jinja="{% set tail = false %}" + source.replace("{{ tools | tojson }}", ""))
        call = {"role": "assistant", "content": None, "tool_calls": [{"z": 1, "a": [2]}], "thinking": "hm"}
        self.tokens(self.write([{"messages": [USER, call, {"role": "tool", "content": "3"}, ANSWER]}]), own)
        ids, mask = self.samples()[0]
        self.assertEqual([a for a, b in zip(mask, mask[1:]) if a != b], [0, 1, 0, 1])
        self.refused([{"messages": [USER, ANSWER], "tools": [{"b": 1}]}], own, 4, "line 1: has 'tools', which the tokenizer's chat template does not write")
        self.refused([{"messages": [USER, ANSWER], "tools": [{"b": 1}]}], self.own("after", jinja=source), 4, "message 2", "ambiguous", "{% generation %}", "--train-on all")
        self.tokens(self.write([{"messages": [USER, ANSWER], "tools": [{"b": 1}]}]), self.folder / "after", "--train-on", "all")

    def test_a_template_by_which_no_turn_end_counts_is_told(self):
        source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        own = self.own("open", jinja=source)
        result = self.tokens(self.write([LINES[0]] * 3), own)
        self.assertEqual(result.err.count("nothing behind an answer counts by the tokenizer's chat template"), 1)
        self.assertIn("{% generation %}", result.err)
        for options in (("--train-on", "all"), ("--chat-template", "chatml")):
            self.assertNotIn("nothing behind", self.tokens(self.write([LINES[0]]), own, *options).err)

    def test_unreadable_ones_are_refused_and_none_is_guessed(self):
        self.refused([LINES[0]], self.own("broken", {"chat_template": "{{ a }}\n{% nosuch %}"}), 4, "broken/tokenizer_config.json", "line 2: {% nosuch %}")
        self.refused([LINES[0]], self.own("strange", jinja="{{ \x1b[2J }}"), 4, "strange/chat_template.jinja", "'\\x1b' has no meaning")
        self.refused([LINES[0]], self.own("raises", jinja="{{ raise_exception('Not ' ~ messages | length) }}"), 4, "refused.jsonl: line 1: the tokenizer's chat template, line 1", "Not 2")
        self.refused([LINES[0]], self.own("endless", jinja="{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"), 4, "it makes more than")
        self.refused([LINES[0]], self.own("none"), 2, "has no chat template of its own", "--chat-template: chatml")
        self.refused([LINES[0]], self.own("unnamed", {"chat_template": [{"name": "rag", "template": "x"}]}), 4, "none that is called default")
        self.refused([LINES[0]], "chatml", 2, "'chatlm' is neither a file with a chat template nor one of chatml", options=["--chat-template", "chatlm"])
        # Its bos_token is null, which transformers does not give to templates, either.
        self.refused([LINES[0]], "chatml", 4, "refused.jsonl: line 1: the chat template 'llama3', line 3: 'bos_token' is undefined", options=["--chat-template", "llama3"])
        self.refused([LINES[0]], "gemma", 4, "'llama3' writes the mark '<|eot_id|>' behind an answer, for which the tokenizer has no token", options=["--chat-template", "llama3"])


class Forms(ConversationsCase):
    def test_keys_tell_the_form(self):
        pair = {"prompt": "a", "completion": " b"}
        chat = {"messages": [USER, ANSWER]}
        for record, has_mask in ((pair, True), (chat, True), ({"prompt": "x", "prompt_id": 3, **chat}, True), ({"text": "a b " * 300}, False)):
            with self.subTest(str(record)[:40]):
                self.assertEqual("counted_tokens" in self.tokens(self.write([record]), "chatml", "--json").json(), has_mask)
        self.refused([{**pair, "text": "x"}], "chatml", 2, "has 'prompt' and 'completion' and 'text'", "--form")
        self.assertEqual(self.tokens(self.write([{**pair, "text": "x"}]), "chatml", "--form", "prompt-completion", "--json").json()["documents"], 1)
        self.tokens(self.write([{"talk": [USER, ANSWER]}]), "chatml", "--form", "messages", "--field", "talk")
        self.assertEqual(len(self.samples()), 1)
        # Plain texts among conversations are trained on as a whole.
        mixed = self.folder / "mixed"
        mixed.mkdir()
        (mixed / "a.jsonl").write_text(json.dumps(chat) + "\n")
        (mixed / "b.jsonl").write_text(json.dumps({"text": "f3."}) + "\n")
        self.tokens(mixed, "chatml")
        self.assertEqual([set(mask) for _, mask in self.samples()], [{0, 1}, {1}])
        self.assertEqual(self.tokens(self.write([pair], "pair.json"), "chatml", "--json").json()["documents"], 1)
        self.refused(self.write(["a,b"], "a.csv"), "chatml", 2, "a.csv: is CSV, which holds texts", options=["--form", "messages"])

    def test_share_gpt_and_alpaca(self):
        system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere"}
        messages = [system, question, ANSWER, USER, ANSWER]
        self.tokens(self.write([{"messages": messages}]), "chatml", name="messages.h5")
        turns = [{"from": {"system": "system", "user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]} for m in messages]
        alpaca = {"instruction": USER["content"], "output": ANSWER["content"], "input": "", "system": system["content"], "history": [[question["content"], ANSWER["content"]]]}
        records = {"share": {"id": 1, "conversations": turns}, "system": {"conversations": turns[1:], "system": system["content"]},
                   "roles": {"conversations": messages}, "inside": {"messages": turns}, "alpaca": alpaca}
        for name, record in records.items():
            with self.subTest(name):
                self.tokens(self.write([record]), "chatml")
                self.assertEqual(self.samples(), self.samples("messages.h5"))
                try:
                    import pyarrow.parquet
                except ImportError:
                    continue
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), self.folder / "other.parquet")
                self.tokens(self.folder / "other.parquet", "chatml", "--form", "messages")
                self.assertEqual(self.samples(), self.samples("messages.h5"))
        self.tokens(self.write([{"instruction": "Hi", "input": "there", "output": "Yes."}]), "chatml")
        self.assertEqual(self.samples()[0][0][-3:], self.samples("messages.h5")[0][0][-3:])
        self.refused([{"instruction": 1, "output": "a"}], "chatml", 4, "line 1: 'instruction' holds a number")
        self.refused([{"conversations": turns, "text": "a"}], "chatml", 2, "has 'conversations' and 'text'", "--form")

    def test_parquet(self):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as missing:
            self.skipTest(str(missing))
        wanted = [json.loads(line) for line in LINES]
        pairs = [json.loads(line) for line in (CHAT / "prompt_completion.jsonl").read_text().splitlines()]
        for name, records, lines in (("chat", wanted, CHAT / "messages.jsonl"), ("pairs", pairs, CHAT / "prompt_completion.jsonl")):
            for large in (False, True):
                with self.subTest(name, large=large):
                    path = self.folder / f"{name}.parquet"
                    table = pyarrow.Table.from_pylist([{"id": i, **r} for i, r in enumerate(records * 50)])
                    if large and name == "pairs":
                        table = table.cast(pyarrow.schema([("id", pyarrow.int64()), ("prompt", pyarrow.large_string()),
                                                           ("completion", pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))]))
                    pyarrow.parquet.write_table(table, path, row_group_size=77 if large else 1000)
                    self.tokens(path, "chatml", name="parquet.h5")
                    self.tokens(lines, "chatml", name="lines.h5")
                    self.assertEqual(self.samples("parquet.h5"), self.samples("lines.h5") * 50)
        call = [{"role": "user", "content": "x", "tool_calls": None}, {"role": "assistant", "content": "y", "tool_calls": [{"name": "f"}]}]
        broken = self.folder / "broken.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": [{**USER, "tool_calls": None}, ANSWER]}, {"messages": call}]), broken)
        self.refused(broken, "chatml", 4, "broken.parquet: row 1: message 2 has 'tool_calls'")
        for name in ("images", "tools"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": [USER, ANSWER], name: None}, {"messages": [USER, ANSWER], name: []},
                                                                   {"messages": [USER, ANSWER], name: [{"bytes": b"\xff"}]}]), self.folder / "beside.parquet")
            self.refused(self.folder / "beside.parquet", "chatml", 4, "beside.parquet: row 2: " + ("holds binary" if name == "tools" else "has 'images"))
        lists = pyarrow.table({"messages": [[USER, ANSWER]] * 2, "images": pyarrow.array([[], None], pyarrow.large_list(pyarrow.binary())),
                               "tools": pyarrow.array(["", None], pyarrow.large_string())})
        pyarrow.parquet.write_table(lists, self.folder / "nothing.parquet")
        self.tokens(self.folder / "nothing.parquet", "chatml", name="nothing.h5")
        self.assertEqual(len(self.samples("nothing.h5")), 2)
        for kind in ("int8", "int16", "uint16", "uint32", "uint64", "float16", "float32", "float64"):
            odd = pyarrow.struct([("role", pyarrow.string_view()), ("content", pyarrow.string()), ("weight", getattr(pyarrow, kind)()), ("score", pyarrow.float64())])
            rows = [[{**USER, "weight": None, "score": float("nan")}, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]]
            pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.array(rows, pyarrow.list_(odd))}), self.folder / "odd.parquet")
            self.tokens(self.folder / "odd.parquet", "chatml", name="odd.h5")
            self.tokens(self.write([{"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}]), "chatml", name="same.h5")
            self.assertEqual(self.samples("odd.h5"), self.samples("same.h5"))
        tiny = pyarrow.Table.from_pylist([{"messages": [USER, {**ANSWER, "weight": 1e-7}]}])
        pyarrow.parquet.write_table(tiny, self.folder / "tiny.parquet")
        self.refused(self.folder / "tiny.parquet", "chatml", 4, "row 0: message 2 has a weight other than 0 and 1")
        self.refused(broken, "chatml", 4, "has no column 'prompt', only 'messages'", options=["--form", "prompt-completion"])

    def test_refusals_name_file_and_line(self):
        def chat(*messages, **more):
            return {"messages": list(messages), **more}
        good = chat(USER, ANSWER)
        for words, record in {
                "message 1 has the role 'tol', expected system, user, assistant, tool": chat({"role": "tol", "content": "1"}, USER),
                "message 2 has no 'content'": chat(USER, {"role": "assistant"}),
                "message 2 has a content that is null": chat(USER, {"role": "assistant", "content": None}),
                "message 1 has a content of 2 parts": chat({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ANSWER),
                "message 1 has a content whose part is no text": chat({"role": "user", "content": [{"type": "image", "url": "a.png"}]}, ANSWER),
                "message 2 has 'tool_calls'": chat(USER, {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}),
                "message 2 has 'reasoning_content'": chat(USER, {**ANSWER, "reasoning_content": "hm"}),
                "message 1 is a string": chat("Hi"),
                "message 2 has a weight other than 0 and 1": chat(USER, {**ANSWER, "weight": 0.5}),
                "'messages' holds no message": chat(),
                "'messages' holds a string": {"messages": "Hi"},
                "has 'tools'": chat(USER, ANSWER, tools=[{"name": "f"}]),
                "has 'images'": chat(USER, ANSWER, images=["a.png"]),
                "message 1 has 'images'": chat({**USER, "images": ["a.png"]}, ANSWER),
                "message 2 has 'reasoning',": chat(USER, {**ANSWER, "reasoning": "hm"}),
                "message 2 has a train other than 0 and 1": chat(USER, {**ANSWER, "train": 0.5}),
                "weight other than 0 and 1": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": NaN}]}',
                "the content of message 1 holds half of a surrogate pair": '{"messages": [{"role": "user", "content": "\\ud83d"}]}',
                "has no 'messages'": {"words": "a"},
                "is no JSON, column": '{"messages": [',
                "nested deeper than 64": '{"messages": ' + "[" * 100,
                "holds no object": "[1]"}.items():
            with self.subTest(words):
                self.refused([good, "", record], "chatml", 4, "refused.jsonl: line 3: ", words)
        self.refused([good, "", {"text": "a"}], "chatml", 4, "refused.jsonl: line 3 is a text, line 1 a conversation: one form per file")
        pair = {"prompt": "a", "completion": "b"}
        for words, record in {"has no 'completion'": {"prompt": "a"}, "has 'images'": {**pair, "images": ["a.png"]}, "'completion' holds null": {**pair, "completion": None},
                              "'prompt' holds a list (whole conversations are read from 'messages')": {**pair, "prompt": [USER]}}.items():
            with self.subTest(words):
                self.refused([pair, record], "chatml", 4, "refused.jsonl: line 2: ", words)

    def test_what_python_writes_in_keys_that_are_not_read(self):
        plain = {"messages": [USER, ANSWER]}
        odd = json.dumps({**plain, "score": float("nan"), "worst": -float("inf"), "id": "\ud83d"})
        self.tokens(self.write([plain, odd, json.dumps({**plain, "x": 1})[:-2] + "1e999}"]), "chatml")
        self.assertEqual(self.samples(), self.samples()[:1] * 3)

    def test_one_text_part_and_weights(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]
        two = [USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "weight": 1}]
        self.tokens(self.write([{"messages": m} for m in ([USER, ANSWER], parts, two, [USER, ANSWER, USER, ANSWER])]), "chatml")
        plain, part, weighted, both = self.samples()
        self.assertEqual(part, plain)
        self.assertEqual(weighted[0], both[0])
        half = len(plain[0]) - 1
        self.assertEqual((sum(weighted[1][:half]), weighted[1][half:]), (0, both[1][half:]))


class Lengths(ConversationsCase):
    def test_cutting_keeps_ids_and_mask_in_line(self):
        truth = TEMPLATES["chatml"]["conversations"]
        for length in (200, 60, 31, 20):
            with self.subTest(length):
                result = self.tokens(CHAT / "messages.jsonl", "chatml", "--max-length", length, "--json")
                cut = [(c["ids"][:length], mask_of(c["labels"])[:length]) for c in truth]
                left = [sample for sample in cut if any(sample[1][1:])]
                self.assertEqual(self.samples(), left)
                report = result.json()
                self.assertEqual((report["documents"], report["skipped"], report["counted_tokens"]), (len(left), len(cut) - len(left), sum(sum(m) for _, m in left)))
                self.assertEqual(report["cut_documents"], sum(len(c["ids"]) > length for c in truth))
                if len(left) < len(cut):
                    first = next(i for i, sample in enumerate(cut) if not any(sample[1][1:]))
                    self.assertEqual(report["first_skipped"], f"{CHAT / 'messages.jsonl'}: line {first + 1}")
                    self.assertIn(f"the first is {CHAT / 'messages.jsonl'}: line {first + 1}", result.err)

    def test_samples_without_answers(self):
        questions = {"messages": [USER]}
        result = self.tokens(self.write([{"messages": [USER, ANSWER]}, questions, questions]), "chatml", "--json")
        self.assertIn("warning: 2 samples without a token that counts are left out, the first is", result.err)
        self.assertEqual((result.json()["skipped"], len(self.samples())), (2, 1))
        self.refused([questions], "chatml", 4, "none of the 1 samples in", "line 1")
        self.tokens(self.write([questions]), "chatml", "--train-on", "all")
        self.refused([questions], "chatml", 2, "--max-length cuts documents", "--documents", options=["--max-length", 9, "--pack"])


class Stops(ConversationsCase):
    """A writer of masks that is stopped leaves the old output and no partial file under its name."""

    def begin(self, data, output, layout):
        log = self.folder / "log"
        process = fsdp_cli.start("fsdp-download", ["tokens", "--input", data, "--tokenizer", tokenizer("chatml"), "--output", output, *layout], 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        fsdp_cli.wait_for(process, log, lambda: any(p.name.endswith(".tmp") for p in output.parent.iterdir()))
        return process

    def test_stopped_killed_or_out_of_room(self):
        data = self.write(LINES * 40000, "many.jsonl")  # seconds of work
        output = self.folder / "stops" / "out.h5"
        output.parent.mkdir()
        output.write_text("old")
        for layout in (["--documents"], ["--pack"]):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with self.subTest(layout[0], signal=number.name):
                    process = self.begin(data, output, layout)
                    process.send_signal(number)
                    process.wait(60)
                    self.assertNotEqual(process.returncode, 0)
                    self.assertEqual(output.read_text(), "old")
                    left = [p for p in output.parent.iterdir() if p != output]
                    if number == signal.SIGTERM:
                        self.assertEqual(left, [])
                    for hidden in left:
                        self.assertTrue(hidden.name.startswith(".out.h5.") and hidden.name.endswith(".tmp"), hidden)
                        hidden.unlink()
            with self.subTest(layout[0], what="no room"):
                result = fsdp_cli.run("fsdp-download", ["tokens", "--input", data, "--tokenizer", tokenizer("chatml"), "--output", output, *layout],
                                      before=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))))
                self.assert_refused(result, 1, "out.h5: token file not written", "File too large")
                self.assertEqual([p.name for p in output.parent.iterdir()], ["out.h5"])
                self.assertEqual(output.read_text(), "old")


if __name__ == "__main__":
    fsdp_cli.main()
