"""Random conversations in all forms (messages, ShareGPT, Alpaca, prompt and completion, texts), written as JSON Lines, as
Parquet and as an Arrow stream: fsdp-download tokens makes equal token files of the three, or refuses them alike."""
import collections
import json
import re
import shutil

import h5py
import pyarrow
import pyarrow.ipc
import pyarrow.parquet

import programs

BATCH = 8
FOLDER = programs.temporary_folder()
FIXTURES = programs.ROOT / "tests" / "fixtures"
counts, refusals = collections.Counter(), collections.Counter()
TEXTS = ["", " ", "hi", "Which move?", "e2e4", "  two\nlines \n", "é日本", "<|im_end|>", "a <s> b", "\t", "👩‍👩‍👧", "\u2028", "x" * 300, "{\"a\": 1}", "null", "'", "\"", "\\n", "\x7f", "\ufeffa", "a\r\nb", "\0", "</think>", "1.0"]
ROLES = ["user", "assistant", "system", "tool", "developer"]
TEMPLATES = ["chatml", "qwen2", "qwen2.5", "jinja/qwen25_tools.jinja", "jinja/qwen3_think.jinja", "jinja/chatml_generation.jinja", "jinja/hermes_type_macro.jinja", "jinja/parts_selectattr.jinja", "jinja/glm_visible_text.jinja", "jinja/smol_think_switch.jinja", "jinja/mistral_tools.jinja"]


def random_value(r, depth=0):
    """Returns a value of the same type for a key in all rows, as a column has: by the key's last letter."""
    values = {"i": lambda: r.choice([0, 1, -5, 2**53 + 1, 2**62]), "f": lambda: r.choice([0.5, 1.0, -2.25, 1e300, 1e-7, 0.1]), "s": lambda: r.choice(TEXTS), "b": lambda: r.random() < 0.5,
              "l": lambda: [r.choice([1, 2, 3]) for _ in range(r.randint(0, 3))], "t": lambda: [r.choice(TEXTS) for _ in range(r.randint(1, 2))]}
    keys = [f"k{letter}" for letter in values] + ([] if depth > 1 else ["kd"])
    return {key: random_value(r, depth + 1) if key == "kd" else values[key[-1]]() for key in r.sample(keys, r.randint(1, 3))}


def random_messages(r, tools):
    messages = [{"role": "system", "content": r.choice(TEXTS)}] if r.random() < 0.3 else []
    for _ in range(r.choice([1, 1, 2, 3])):
        messages.append({"role": "user", "content": r.choice(TEXTS)})
        answer = {"role": "assistant", "content": r.choice(TEXTS)}
        if tools and r.random() < 0.5:
            arguments = random_value(r)
            answer["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": arguments if tools == "dict" else json.dumps(arguments)}}]
            messages += [answer, {"role": "tool", "name": "f", "content": r.choice(TEXTS)}]
            answer = {"role": "assistant", "content": r.choice(TEXTS)}
        if r.random() < 0.15:
            answer["reasoning_content"] = r.choice(TEXTS)
        if r.random() < 0.1:
            answer["weight"] = r.choice([0, 1])
        messages.append(answer)
    if r.random() < 0.05:
        messages[r.randrange(len(messages))]["role"] = r.choice(ROLES)
    return messages


def random_row(r, form, tools):
    if form == "messages":
        row = {"messages": random_messages(r, tools)}
        if tools and r.random() < 0.8:
            listed = [{"type": "function", "function": {"name": "f", "description": r.choice(TEXTS), "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": r.choice([["x"], []])}}}]
            row["tools"] = listed if tools == "dict" else json.dumps(listed)
        if r.random() < 0.1:
            row["chat_template_kwargs"] = {"enable_thinking": r.random() < 0.5}
        return row
    if form == "sharegpt":
        return {"conversations": [{"from": name, "value": r.choice(TEXTS)} for _ in range(r.randint(1, 2)) for name in ("human", "gpt")], **({"id": r.choice(["1", "x"])} if r.random() < 0.3 else {})}
    if form == "alpaca":
        row = {"instruction": r.choice(TEXTS), "output": r.choice(TEXTS)}
        row.update({key: value for key, value in (("input", r.choice(TEXTS)), ("system", r.choice(TEXTS)), ("history", [[r.choice(TEXTS), r.choice(TEXTS)]])) if r.random() < 0.3})
        return row
    if form == "pairs":
        return {"prompt": r.choice(TEXTS), "completion": r.choice(TEXTS)}
    return {"text": r.choice(TEXTS)}


def generate(r):
    form = r.choice(["messages", "messages", "messages", "sharegpt", "alpaca", "pairs", "text"])
    tools = r.choice([None, None, "dict", "json"])
    rows = [random_row(r, form, tools) for _ in range(r.choice([1, 2, 3, 5]))]
    first = dict.fromkeys(key for row in rows for key in row)
    if form == "messages" and r.random() < 0.05:
        del rows[-1]["messages"]
    more = ["--documents"] if form == "text" and r.random() < 0.8 else r.choice([[], [], ["--train-on", "all"], ["--marks", "plain"], ["--max-length", "40"], ["--documents"], ["--pairs", "separate"]])
    return {"rows": rows, "columns": list(first), "template": r.choice(TEMPLATES), "more": more,
            "parquet": {"compression": r.choice(["snappy", "zstd", "none"]), "use_dictionary": r.random() < 0.5, "row_group_size": r.choice([1, 2, 100])}, "large": r.random() < 0.2}


def table_of(case):
    columns = {name: pyarrow.array([row.get(name) for row in case["rows"]]) for name in case["columns"]}
    if case["large"]:
        columns = {name: column.cast(pyarrow.large_string()) if pyarrow.types.is_string(column.type) else column for name, column in columns.items()}
    return pyarrow.table(columns)


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def content(path):
    with h5py.File(path) as file:
        return {name: file[name][:].tolist() for name in sorted(file, reverse=True)}


def difference(case, number):
    folder = FOLDER / str(number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        table = table_of(case)
    except pyarrow.ArrowException:
        counts["no table"] += 1
        return None
    # The rows of the table: a column of records has the keys of all rows, in one order.
    rows = [without_nulls(row) for row in table.to_pylist()]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(table, folder / "a.parquet", **case["parquet"])
    with pyarrow.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    template = case["template"] if "/" not in case["template"] else FIXTURES / case["template"]
    found = {}
    for kind in ("jsonl", "parquet", "arrow"):
        out = folder / f"{kind}.h5"
        more = case["more"] + (["--chat-template", template] if not {"text", "prompt"} & set(case["columns"]) else [])
        result = programs.run("fsdp-download", ["tokens", "--input", folder / f"a.{kind}", "--tokenizer", FIXTURES / "chat" / "tokenizers" / "chatml", "--output", out, *more])
        found[kind] = content(out) if result.code == 0 else result
    refused = {kind: result for kind, result in found.items() if not isinstance(result, dict)}
    shown = "\n" + "\n".join(f"{kind}: {result.err.strip() if kind in refused else result}" for kind, result in found.items())
    for kind, result in refused.items():
        if result.code not in (2, 4) or len(result.errors()) != 1:
            return f"a refusal that is none, exit code {result.code}{shown}"
    if len(refused) not in (0, 3):
        return f"refused only as {' '.join(refused)}{shown}"
    if refused:
        counts["refused"] += 1
        refusals[re.sub(r"[0-9]+|\S*/\S*|'.*?'", "N", found["jsonl"].errors()[0])[:110]] += 1
        return None
    counts["compared"] += 1
    wrong = [kind for kind in found if found[kind] != found["jsonl"]]
    return f"{' '.join(wrong)} differ from JSON Lines{shown}" if wrong else None


def differences(cases):
    return [difference(case, number) for number, case in enumerate(cases)]


def summary():
    return ", ".join(f"{count} {what}" for what, count in counts.items()) + "".join(f"\n    {count} {words}" for words, count in refusals.most_common(15))


KNOWN = []
