"""Records of JSON Lines, Parquet and Arrow streams: templates get the values that they hold, so that the ids equal those of
the installed transformers for the same values in Python."""

import datetime
import decimal
import json
import os

import fsdp_cli
from conversations_cli import TEMPLATES, ConversationsCase, h5py, tokenizer

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
with fsdp_cli.needed():
    import transformers
with fsdp_cli.needed():
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}
# Writes tools, a variable, what calls are given and a message's own key.
ALL = ("{% if tools is not none %}{{ tools | tojson }}\n{% endif %}{{ limit }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.score }}"
       "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}")
LOSS_KEYS = ("weight", "loss", "loss_mask", "loss_weight", "loss_scale", "trainable", "train", "training")
CHATML = TEMPLATES["chatml"]["template"]


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def tool(name, **properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def json_column(values):
    return pyarrow.ExtensionArray.from_storage(pyarrow.json_(), pyarrow.array(values, pyarrow.string()))


class RecordsCase(ConversationsCase):
    def setUp(self):
        super().setUp()
        self.opened = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer("chatml") / "tokenizer.json"), eos_token="<|im_end|>")

    def wanted(self, rows, template=ALL):
        return [self.opened.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=template, **row.get("chat_template_kwargs", {}))["input_ids"]
                for row in rows]

    def template(self, text):
        path = self.folder / "template.jinja"
        path.write_text(text)
        return ["--chat-template", path, "--form", "messages", "--train-on", "all", "--documents"]

    def check(self, data, rows, template=ALL, **more):
        """The file, or the lines, give the ids that transformers has for `rows`."""
        data = self.write(data) if isinstance(data, list) else data
        self.tokens(data, "chatml", *self.template(template), *(f"--{k}={v}" for k, v in more.items()))
        with h5py.File(self.folder / "out.h5") as file:
            offsets, ids = file["offsets"][:].tolist(), file["tokens"][:].tolist()
        self.assertEqual([ids[a:b] for a, b in zip(offsets, offsets[1:])], self.wanted(rows, template), data)

    def columns(self, table, name="table", store_schema=True):
        """Writes a table as Parquet and as datasets.save_to_disk does."""
        table = table if isinstance(table, pyarrow.Table) else pyarrow.Table.from_pylist(table)
        parquet, arrow = self.folder / f"{name}.parquet", self.folder / f"{name}.arrow"
        pyarrow.parquet.write_table(table, parquet, store_schema=store_schema)
        with pyarrow.ipc.new_stream(arrow, table.schema) as stream:
            stream.write_table(table)
        return parquet, arrow


class Columns(RecordsCase):
    def test_the_keys_of_other_records_are_none(self):
        """All records of a column have the same keys: those that are null belong to others."""
        rows = [{"messages": [USER, call({"city": "Rome"})], "tools": [tool("f", city={"type": "string"})], "chat_template_kwargs": {"limit": 1}},
                {"messages": [USER, call({"a": 1, "b": [None, 2]})], "tools": [tool("g", a={"type": "integer"}, b={"items": {"x": True}})], "chat_template_kwargs": {"other": 2}}]
        for data in (rows, *self.columns(rows)):
            self.check(data, rows)

    def test_whole_floats_stay_floats(self):
        rows = [{"messages": [USER, call({"x": value, "n": 7})]} for value in (20.0, -3.0, 0.0, -0.0, 123456789.0, 1e16, 1e22, 0.5, 1e-5, 5e-324)]
        for data in (rows, *self.columns(rows)):
            self.check(data, rows)
        for kind in (pyarrow.float16(), pyarrow.float32()):
            types = pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("score", kind)]))
            table = pyarrow.table({"messages": pyarrow.array([[{**USER, "score": 4.0}, {**ANSWER, "score": 0.1}]], types)})
            for data in self.columns(table):
                self.check(data, table.to_pylist())

    def test_columns_of_json(self):
        """The type Json of datasets is arrow.json: a value as JSON in a string."""
        tools = [tool("f", city={"type": "string", "default": None}), tool("g", n={"maximum": 2.0})]
        messages = [USER, call({"b": None, "a": 1})]
        rows = [{"messages": messages, "tools": tools}, {"messages": messages}]
        each = pyarrow.ListArray.from_arrays(pyarrow.array([0, 2, 2], pyarrow.int32()), json_column([json.dumps(one) for one in tools]), mask=pyarrow.array([False, True]))
        talk = json_column([json.dumps(messages)] * 2)
        for column in (json_column([json.dumps(tools), None]), json_column([json.dumps(tools), "null"]), each):
            for store_schema in (True, False):
                for data in self.columns(pyarrow.table({"messages": talk, "tools": column, "images": json_column(["[]", None])}), store_schema=store_schema):
                    self.check(data, rows)
        for data in self.columns(pyarrow.table({"messages": talk, "images": json_column([None, '["a.png"]'])})):
            self.refused(data, "chatml", 4, "row 1: has 'images'", options=self.template(ALL))
        for data in self.columns(pyarrow.table({"messages": json_column(["[]], [[", None])})):
            self.refused(data, "chatml", 4, "row 0: holds a value of the type JSON that is no JSON", options=self.template(ALL))

    def test_texts_of_json(self):
        texts = ["a \"quoted\" text\n", "", "b c", "", "{}"]
        self.tokens(self.write([{"text": text} for text in texts]), "chatml", "--documents", name="lines.h5")
        for data in self.columns(pyarrow.table({"text": json_column([json.dumps(texts[0]), None, '["b", "c"]', "null", '"{}"'])})):
            self.tokens(data, "chatml", "--documents", name="json.h5")
            with h5py.File(self.folder / "lines.h5") as lines, h5py.File(self.folder / "json.h5") as found:
                self.assertEqual((found["tokens"][:].tolist(), found["offsets"][:].tolist()), (lines["tokens"][:].tolist(), lines["offsets"][:].tolist()))
        for value in ('{"a": 1}', "7", '["a", null]'):
            for data in self.columns(pyarrow.table({"text": json_column(['"a"', value])})):
                self.refused(data, "chatml", 4, "row 1: ", "expected" if data.suffix == ".parquet" else "else than strings", options=["--documents"])

    def test_types_that_json_lines_has_not(self):
        """Times and decimals as Python prints them; bytes that are text; maps."""
        moment, zone = datetime.datetime(2026, 1, 31, 12, 30), datetime.timezone.utc
        for value, kind in ((moment, pyarrow.timestamp("us")), (moment, pyarrow.timestamp("ns")), (moment.replace(microsecond=250), pyarrow.timestamp("us")),
                            (moment.date(), pyarrow.date32()), (moment.time(), pyarrow.time64("us")), (decimal.Decimal("1.50"), pyarrow.decimal128(9, 2)),
                            (b"text", pyarrow.binary()), (b"text", pyarrow.large_binary()), (b"text", pyarrow.binary(4))):
            with self.subTest(str(kind), value=value):
                types = pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("score", kind)]))
                rows = [[{**USER, "score": value}, {**ANSWER, "score": None}]]
                text = value.decode() if isinstance(value, bytes) else str(value)
                for data in self.columns(pyarrow.table({"messages": pyarrow.array(rows, types)})):
                    self.check(data, [{"messages": [{**USER, "score": text}, ANSWER]}])
        types = pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("time", pyarrow.timestamp("us", "UTC"))]))
        for data in self.columns(pyarrow.table({"messages": pyarrow.array([[{**USER, "time": moment.replace(tzinfo=zone)}, ANSWER]], types)})):
            self.check(data, [{"messages": [USER, ANSWER]}])
        given = pyarrow.map_(pyarrow.string(), pyarrow.float64())
        types = pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()), ("tool_calls", pyarrow.list_(pyarrow.struct(
            [("function", pyarrow.struct([("arguments", given)]))])))]))
        made = [[USER, call([("x", 1.0), ("y", None)])]]
        for data in self.columns(pyarrow.table({"messages": pyarrow.array(made, types)})):
            self.check(data, [{"messages": [USER, call({"x": 1.0, "y": None})]}])
        # A whole column of times is no column of texts.
        for data in self.columns(pyarrow.table({"text": [moment], "more": [[moment]]})):
            for field in ("text", "more"):
                self.refused(data, "chatml", 4, "holds ", "expected strings", options=["--documents", "--field", field])
        # Writers give a column the type null where every value is null.
        nulls = {"text": pyarrow.nulls(2), "more": pyarrow.array([[], None], pyarrow.list_(pyarrow.null()))}
        for name, options in (("text", ["--field", "text"]), ("more", ["--field", "more"]), ("messages", [])):
            for data in self.columns(pyarrow.table({"messages": pyarrow.nulls(2)} if name == "messages" else nulls)):
                self.refused(data, "chatml", 4, f"{data.name}: column '{name}' has no values: its type is null, expected", options=["--documents", *options])
        odd = pyarrow.array([[{**USER, "content": b"\xff"}, {**ANSWER, "content": b"a"}]])
        for data in self.columns(pyarrow.table({"messages": odd})):
            self.refused(data, "chatml", 4, "row 0: holds binary that is no UTF-8", options=self.template(ALL))


class Numbers(RecordsCase):
    def test_what_python_writes_beyond_json(self):
        talk = '{"messages": [{"role": "user", "content": "q"%s}, {"role": "assistant", "content": "a", "tool_calls": [{"function": {"arguments": {"x": %s}}}]}], %s}'
        lines = []
        for number in ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
                       "-9223372036854775809", "1" + "0" * 21, "-123456789012345678901234567890", "170141183460469231731687303715884105727", "1e308", "-1e308", "10e307", "1.0E+308"):
            lines += [talk % ("", number, '"meta": 1'), talk % (', "score": ' + number, number, f'"meta": [{number}]'),
                      talk % ("", f'[{number}, 1e308, {number}, "{number}", 0.5]', f'"tools": [{{"type": "function", "function": {{"maximum": {number}}}}}]'),
                      talk % ("", 1, f'"chat_template_kwargs": {{"limit": {number}}}')]
        self.check(lines, [json.loads(line) for line in lines])

    def test_numbers_in_json_that_is_a_string(self):
        for number in ("18446744073709551616", "NaN"):
            tools = [tool("f", maximum=json.loads(number))]
            self.check([{"messages": [USER, ANSWER], "tools": json.dumps(tools)}], [{"messages": [USER, ANSWER], "tools": tools}])
            share = [{"from": "human", "value": "Hi"}, {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"x": json.loads(number)}})}]
            template = ALL.replace("{{ m.content }}", "{{ m.content or '' }}")
            self.check([{"conversations": share}], [{"messages": [USER, call({"x": json.loads(number)})]}], template)
        self.refused([{"messages": [USER, ANSWER], "tools": '["\\ud83d"]'}], "chatml", 4, "line 1: JSON in a string holds half of a surrogate pair", options=self.template(ALL))

    def test_numbers_that_are_too_long(self):
        number = "1" + "0" * 400
        unread = json.dumps({"messages": [USER, ANSWER]})[:-1] + f', "meta": {number}}}'
        self.check([unread], [{"messages": [USER, ANSWER]}])
        for digits in (number, "170141183460469231731687303715884105728"):
            line = json.dumps({"messages": [USER, call({"x": 0})]}).replace(": 0", ": " + digits)
            self.refused([unread, line], "chatml", 4, "line 2: ", f"the number {digits[:50]} has more than 128 bits", options=self.template(ALL))
        for wrong in ("-NaN", "NaNa", "01e999", "1.e999", "0" * 30 + "99999999999999999999", "+1", "Inf"):
            self.refused([f'{{"messages": [], "meta": {wrong}}}'], "chatml", 4, "line 1: is no JSON", options=self.template(ALL))

    def test_noncharacters_beside_half_a_pair(self):
        text = "\ufdd0 and \ufdd1"
        rows = [{"messages": [{**USER, "content": text}, ANSWER], "id": "\ud83d"}]
        for data in (rows, [json.dumps(rows[0]).replace("\\ufdd0", "\ufdd0")]):
            self.tokens(self.write(data), "chatml", *self.template(ALL))


class Beside(RecordsCase):
    def test_system_in_every_layout(self):
        talk = [USER, ANSWER]
        share = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]
        want = [{"messages": [{"role": "system", "content": "Be brief."}, *talk]}]
        layouts = {"conversations": {"conversations": share}, "roles": {"conversations": talk}, "messages": {"messages": talk}, "inside": {"messages": share},
                   "alpaca": {"instruction": "Hi", "output": "Yes."}, "field": {"talk": talk}}
        for name, record in layouts.items():
            more = {"field": "talk"} if name == "field" else {}
            with self.subTest(name):
                rows = [{**record, "system": "Be brief."}]
                for data in self.columns(rows):
                    self.check(data, want, **more)
                self.check([*rows, {**record, "system": ["Be brief."]}], want * 2, **more)
                self.check([{**record, "system": nothing} for nothing in (None, "", [])], [{"messages": talk}] * 3, **more)
        for data in ([{**want[0], "system": "Be brief."}], [{**want[0], "system": None}]):
            self.check(data, want)
        for words, system in (("has 'system' and a system message that says something else", "Be long."), ("'system' holds an object", {"a": 1}), ("'system' holds a list", ["a", "b"])):
            self.refused([{**want[0], "system": system}], "chatml", 4, "line 1: " + words, options=self.template(ALL))
        self.refused([{"prompt": "a", "completion": "b", "system": "c"}], "chatml", 4, "line 1: has 'system', which is for conversations")

    def test_a_list_without_tools_is_a_list(self):
        """Templates ask `tools is not none`."""
        for tools in (None, [], [tool("f", x=1)]):
            rows = [{"messages": [USER, ANSWER], "tools": tools}]
            for data in (rows, [{"messages": [USER, ANSWER], "tools": json.dumps(tools)}], *(self.columns(rows) if tools else ())):
                self.check(data, rows)
        empty = pyarrow.table({"messages": [[USER, ANSWER]], "tools": pyarrow.array([[]], pyarrow.list_(pyarrow.string()))})
        for data in self.columns(empty):
            self.check(data, [{"messages": [USER, ANSWER], "tools": []}])
        for nothing in ("", {}):
            self.check([{"messages": [USER, ANSWER], "tools": nothing}], [{"messages": [USER, ANSWER]}])
        self.check([{"messages": [USER, ANSWER], "tools": []}], [{"messages": [USER, ANSWER]}], CHATML)

    def test_an_empty_instruction(self):
        """As LLaMA-Factory joins what is not empty."""
        for record in ({"instruction": "", "input": "Hi"}, {"instruction": "Hi", "input": ""}):
            self.check([{**record, "output": "Yes."}], [{"messages": [USER, ANSWER]}])


class Learned(RecordsCase):
    def test_keys_of_other_programs(self):
        cases = [({key: value}, bool(value)) for key in LOSS_KEYS for value in (False, 0, 0.0, True, 1, 1.0)]
        cases += [({key: None}, True) for key in (*LOSS_KEYS, "train_detail")] + [({key: 0}, True) for key in ("name", "id", "score")]
        self.tokens(self.write([{"messages": [USER, {**ANSWER, **more}, USER, ANSWER]} for more, _ in cases]), "chatml")
        for (more, counts), (ids, mask) in zip(cases, self.samples(), strict=True):
            self.assertEqual(self.opened.decode([i for i, one in zip(ids, mask) if one]), "Yes.<|im_end|>" * (1 + counts), more)
        for key, value in [(key, 0.5) for key in LOSS_KEYS] + [("loss", 2), ("loss_mask", [0, 1]), ("train", "no")]:
            self.refused([{"messages": [USER, {**ANSWER, key: value}]}], "chatml", 4, f"line 1: message 2 has a {key} other than 0 and 1")
        self.refused([{"messages": [USER, {**ANSWER, "weight": 1, "loss": False}]}], "chatml", 4, "message 2 has 'weight' and 'loss', which contradict each other")
        self.refused([{"messages": [USER, {**ANSWER, "train_detail": [{"begin_offset": 0}]}]}], "chatml", 4, "message 2 has 'train_detail', which is not read")
        self.refused([{"messages": [USER, {"role": "assistant", "loss": True}]}], "chatml", 4, "message 2 has no 'content'")

    def test_keys_beside_the_messages(self):
        for key in ("loss_mask", "loss_masks", "loss_weight", "loss_weights", "loss_scale", "trainable"):
            for value in ([0, 1], False):
                rows = [{"messages": [USER, ANSWER], key: value}]
                for data in (rows, self.columns(rows)[0]):
                    self.refused(data, "chatml", 4, f"has '{key}', which is read in messages only")
            self.tokens(self.write([{"messages": [USER, ANSWER], key: value} for value in (None, 1, True, [])]), "chatml")


class MessagePairs(RecordsCase):
    def trained(self, row, template):
        """Ids and mask of tokenize_fn() in SFTTrainer of TRL 1.16."""
        more = {"chat_template": template, "tools": row.get("tools"), **(row.get("chat_template_kwargs") or {})}
        prompt = self.opened.apply_chat_template(row["prompt"], add_generation_prompt=True, **more)["input_ids"]
        ids = self.opened.apply_chat_template(row["prompt"] + row["completion"], **more)["input_ids"]
        same = 0
        while same < min(len(prompt), len(ids)) and prompt[same] == ids[same]:
            same += 1
        return ids, [0] * same + [1] * (len(ids) - same)

    def test_ids_and_masks_are_those_of_trl(self):
        system, more = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "More\n"}
        rows = [{"prompt": [USER], "completion": [ANSWER]},
                {"prompt": [system, USER, ANSWER, more], "completion": [{**ANSWER, "content": "\n\n a <|im_end|> é"}]},
                {"prompt": [USER], "completion": [ANSWER, more, ANSWER]}]
        for name in ("chatml", "qwen2.5"):
            for data in (rows, *self.columns([{"id": 1, **row} for row in rows])):
                for options in ((), ("--form", "prompt-completion", "--pairs", "separate")):
                    with self.subTest(name, data=str(data)[:30], options=options):
                        result = self.tokens(self.write(data) if isinstance(data, list) else data, "chatml", "--chat-template", name, "--json", *options)
                        self.assertEqual(self.samples(), [self.trained(row, TEMPLATES[name]["template"]) for row in rows])
                        self.assertEqual((result.json()["layout"], result.json()["chat_template"]), ("documents", name))
        with_tools = [{"prompt": [USER], "completion": [call({"x": 1}), ANSWER], "tools": [tool("f")], "chat_template_kwargs": {"limit": 3}}]
        template = ALL + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        (self.folder / "tools.jinja").write_text(template)
        self.tokens(self.write(with_tools), "chatml", "--chat-template", self.folder / "tools.jinja")
        self.assertEqual(self.samples(), [self.trained(row, template) for row in with_tools])
        self.tokens(self.write([{"prompt": [USER], "completion": [ANSWER], "system": "Be brief."}]), "chatml")
        self.assertEqual(self.samples(), [self.trained({"prompt": [system, USER], "completion": [ANSWER]}, CHATML)])
        share = [{"prompt": [{"from": "human", "value": "Hi"}], "completion": [{"from": "gpt", "value": "Yes."}]}]
        self.tokens(self.write(share), "chatml")
        self.assertEqual(self.samples(), [self.trained(rows[0], CHATML)])
        # Marks inside messages as plain text: the same but for the mark within the second answer.
        self.tokens(self.write(rows), "chatml", "--marks", "plain")
        plain = self.samples()
        end = self.opened.convert_tokens_to_ids("<|im_end|>")
        self.assertEqual([plain[0], plain[2]], [self.trained(row, CHATML) for row in rows[::2]])
        self.assertEqual((plain[1][0].count(end), self.opened.decode(plain[1][0])), (5, self.opened.decode(self.trained(rows[1], CHATML)[0])))

    def test_refusals(self):
        good = {"prompt": [USER], "completion": [ANSWER]}
        for words, record in {"'completion' holds no message": {**good, "completion": []}, "'prompt' holds no message": {**good, "prompt": []},
                              "'prompt' holds a list": {**good, "completion": "b"}, "'completion' holds a list": {**good, "prompt": "a"},
                              "message 2 has no 'content'": {**good, "completion": [{"role": "assistant"}]}, "has 'images'": {**good, "images": ["a.png"]},
                              "has 'tools', which the tokenizer's chat template does not write": {**good, "tools": [tool("f")]},
                              "message 2 of prompt and completion is not to be learned": {**good, "completion": [{**ANSWER, "weight": 0}]}}.items():
            with self.subTest(words):
                self.refused([good, record], "chatml", 4, "refused.jsonl: line 2: ", words)
        self.refused([{"prompt": "a", "completion": "b"}, good], "chatml", 4, "line 2: 'prompt' holds a list, and in the first sample of the file a string")
        thinks = self.folder / "thinks.jinja"
        thinks.write_text(CHATML.replace("{% endif %}", "<think>{% endif %}"))
        self.refused([good], "chatml", 4, "line 1: message 2", "ambiguous", "does not begin a completion as it ends a prompt", options=["--chat-template", thinks])
        self.tokens(self.write([good]), "chatml", "--chat-template", thinks, "--train-on", "all")


if __name__ == "__main__":
    fsdp_cli.main()
