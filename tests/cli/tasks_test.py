"""Benchmarks (fsdp-eval --tasks) give lm-eval's numbers: prompts, shots, answers, metrics and errors of 26 tasks on three tiny
models are those that lm-eval 0.4.13 logged, on any number of ranks; what cannot be asked is refused by file and row."""

import gzip
import json
import math
import pathlib
import shutil

import fsdp_cli
import hub_server

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/benchmarks"
TASKS = FIXTURES / "tasks"
# Against a model in float64: lm-eval's float32 is up to 5.2e-5 away, ours up to 3.9e-5 and in 97 of 100 choices 1e-5 (sums over
# logits that float32 rounds). Pages have hundreds of ids: lm-eval 7.5e-7 of the sum, ours 7.3e-7.
LOG_LIKELIHOOD, PAGE = 5e-5, 3e-6
# Means over such numbers; perplexities of words multiply them by the words of a page.
FIGURE = 1e-4


def expected():
    return json.loads(gzip.decompress((FIXTURES / "expected.json.gz").read_bytes()))


def ours(name):
    """The name of a task whose file in the fixtures needs Python."""
    return "truths_share" if name == "truths2" else name


class Tasks(fsdp_cli.Case):
    def ask(self, model, names, *more, ranks=0, code=0):
        """Returns results and samples by task."""
        log = self.folder / "samples.jsonl"
        report = self.evaluate(FIXTURES / "models" / model, "--include-path", TASKS, "--log-samples", log, *more,
                               "--tasks", *map(ours, names), ranks=ranks, code=code)
        if code:
            return report
        samples = {}
        for line in log.read_text().splitlines():
            sample = json.loads(line)
            samples.setdefault(sample["task"], []).append(sample)
        return report, samples

    def check_sample(self, task, sample, requests, wanted):
        self.assertEqual(sample["doc"], requests["doc"])
        if task != "truths2":
            self.assertEqual(sample["target"], str(requests["target"]))
        self.assertEqual(sample["filter"], wanted["filter"])
        arguments = [list(one.values()) for one in sample["arguments"].values()]
        self.assertEqual(arguments, requests["arguments"])
        for mine, theirs, ids in zip(sample["resps"], wanted["resps"], wanted["ids"], strict=True):
            if isinstance(theirs[0], str):
                self.assertEqual(mine, theirs)
                continue
            if not isinstance(theirs[0], list):
                mine, theirs = [[mine[0], "None"]], [[theirs[0], None]]
            exact = ids["loglikelihood_float64"]
            far = PAGE * abs(exact) if "windows" in ids else LOG_LIKELIHOOD
            self.assertAlmostEqual(float(mine[0][0]), exact, delta=far, msg=str(sample))
            self.assertEqual(mine[0][1], str(theirs[0][1]))
        self.assertEqual(sample["metrics"], wanted["metrics"])
        for metric in wanted["metrics"]:
            self.check_metric(sample[metric], wanted[metric])

    def check_metric(self, mine, theirs):
        if isinstance(theirs, list):
            for one, other in zip(mine, theirs, strict=True):
                self.check_metric(one, other)
        else:
            self.assertAlmostEqual(mine, theirs, delta=FIGURE * max(1, abs(theirs)))

    def check_results(self, mine, theirs, names):
        for name in names:
            one, other = mine["results"][ours(name)], theirs["results"][name]
            self.assertEqual(set(one), set(other), name)
            for key, value in other.items():
                if isinstance(value, float):
                    self.assertAlmostEqual(one[key], value, delta=FIGURE * max(1, abs(value)), msg=f"{name} {key}")
                elif key not in ("name", "alias"):
                    self.assertEqual(one[key], value, f"{name} {key}")
        for kind in ("n-shot", "n-samples", "higher_is_better", "group_subtasks", "versions"):
            for name in names:
                if name in theirs[kind]:
                    self.assertEqual(mine[kind][ours(name)], theirs[kind][name], f"{kind} of {name}")

    def check_run(self, run, model, names, *more, ranks=0):
        truth = expected()[run]
        report, samples = self.ask(model, names, *more, ranks=ranks)
        self.check_results(report, truth[model]["results"], truth[model]["results"]["results"])
        for name, wanted in truth[model].items():
            if name == "results":
                continue
            got = samples[ours(name)]
            self.assertEqual(len(got), len(wanted), name)
            requests = {one["doc_id"]: one for one in truth["requests"][name]}
            for sample, one in zip(got, wanted, strict=True):
                with self.subTest(run=run, model=model, task=name, question=one["doc_id"]):
                    self.assertEqual(sample["doc_id"], one["doc_id"])
                    self.check_sample(name, sample, requests[one["doc_id"]], one)
        return report, samples

    def names_of(self, run, model):
        truth = expected()[run][model]["results"]
        members = {member for group in truth.get("group_subtasks", {}).values() for member in group}
        return [name for name in truth["results"] if name not in members or name == "truths2"]

    def test_as_lm_eval(self):
        for model in ("llama", "qwen2", "gpt2"):
            self.check_run("default", model, self.names_of("default", model))

    def test_any_ranks_and_batch_size(self):
        names = ("endings", "lastword", "pages", "sums", "passages")
        _, alone = self.ask("llama", names)
        for ranks, more in ((0, ("--batch-size", 1)), (2, ("--batch-size", 3)), (3, ("--sharding", "no-shard")),
                            (4, ("--sharding", "hybrid-grad-shard"))):
            with self.subTest(ranks=ranks, more=more):
                _, samples = self.ask("llama", names, *more, ranks=ranks)
                self.assertEqual(samples, alone)  # to the last bit

    def test_other_runs(self):
        self.check_run("flat", "llama", self.names_of("flat", "llama"))
        self.check_run("flat", "gpt2", self.names_of("flat", "gpt2"))
        self.check_run("limit", "gpt2", self.names_of("limit", "gpt2"), "--limit", 0.4, "--bootstrap-iters", 1000)
        self.check_run("seed7_shots4", "llama", self.names_of("seed7_shots4", "llama"), "--num-fewshot", 4, "--fewshot-seed", 7)

    # Requests that cannot be scored, and task files that are none

    def write_task(self, text, rows=({"q": "Say", "c": ["a", "b"], "a": 0},)):
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "task.yaml").write_text(text)
        return self.folder / "task.yaml"

    def test_refusals(self):
        words = {"choice_longer_than_model": ("row 0 of test, choice 1: it has ", "ids, and the model takes 192"),
                 "choice_empty": ("row 1 of test: choice 0 is empty",),
                 "choice_empty_first_document": ("row 0 of test: choice 0 is empty",),
                 "choice_empty_alone": ("row 1 of test: choice 0 is empty",),
                 "choice_swallowed": ("row 0 of test, choice 0: nothing is left to score",),
                 "unknown_column": ("key 'doc_to_text': row 0 of test: line 1: 'question' is undefined",),
                 "gold_beyond_choices": ("row 1 of test: the answer 5 is none of the 2 choices",),
                 "gold_unknown_text": ('row 1 of test: the answer "z" is none of the 2 choices',),
                 "too_few_shots_first": ("9 shots are asked for, and test has 2 for a question",),
                 "too_few_shots_drawn": ("9 shots are asked for, and test has 2 for a question",),
                 "generation_as_long_as_model": ("max_gen_toks is 400, and the model has 192 positions",)}
        for name, case in json.loads((FIXTURES / "refusals.json").read_text()).items():
            task = self.write_task(case["yaml"], case["rows"])
            for model in ("llama", "qwen2", "gpt2") if name not in words else ("llama",):
                with self.subTest(case=name, model=model):
                    if name in words:
                        result = self.ask(model, [str(task)], code=4)
                        for one in words[name]:
                            self.assertIn(one, result.err)
                        continue
                    report, samples = self.ask(model, [str(task)])
                    truth = case[model]
                    if "scored" not in truth:  # a context of white space, which lm-eval cannot score without a beginning mark
                        self.assertTrue(all(math.isfinite(float(one[0][0])) for one in samples[name][0]["resps"]))
                        continue
                    for sample, answers in zip(samples[name], truth["scored"], strict=True):
                        for mine, theirs in zip(sample["resps"], answers, strict=True):
                            self.assertAlmostEqual(float(mine[0][0]), theirs[0][0], delta=1e-6 * max(100, abs(theirs[0][0])))
                            self.assertEqual(mine[0][1], str(theirs[0][1]))
                    for metric, value in truth["metrics"].items():
                        self.assertEqual(report["results"][name][metric], value)

    def test_bad_task_files(self):
        good = {"task": "t", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test",
                "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "c", "doc_to_target": "a"}
        cases = [({"doc_to_txt": "x"}, "key 'doc_to_txt': is not known; did you mean 'doc_to_text'?"),
                 ({"output_type": "choice"}, "key 'output_type': is 'choice', choose from multiple_choice"),
                 ({"doc_to_text": None}, "key 'doc_to_text': is missing"),
                 ({"doc_to_text": "{{ q"}, "key 'doc_to_text': line 1"),
                 ({"doc_to_text": "{{ q|nosuch }}"}, "there is no filter 'nosuch'"),
                 ({"doc_to_choice": "{{ q }}"}, "row 0 of test: makes 'Say', which is no list of Python"),
                 ({"doc_to_choice": "q"}, "row 0 of test: is no list of choices"),
                 ({"doc_to_choice": ["a", 1]}, "choice 1 is 1, and a text is expected"),
                 ({"doc_to_target": "{{ missing }}"}, "key 'doc_to_target': row 0 of test: line 1: 'missing' is undefined"),
                 ({"metric_list": [{"metric": "bleu"}]}, "key 'metric': 'bleu' is not known here"),
                 ({"metric_list": [{"metric": "perplexity"}]}, "'perplexity' is no metric of output_type multiple_choice"),
                 ({"metric_list": [{"metric": "acc"}, {"metric": "acc"}]}, "'acc' is there twice"),
                 ({"dataset_kwargs": {"data_files": {"test": "nosuch.jsonl"}}}, "nosuch.jsonl: No such file"),
                 ({"dataset_kwargs": {"data_files": 7}}, "data_files is no file"),
                 ({"test_split": "dev"}, "data_files has no split 'dev'"),
                 ({"test_split": None}, "key 'test_split': is missing"),
                 ({"num_fewshot": -1}, "key 'num_fewshot': is negative"),
                 ({"num_fewshot": 1, "fewshot_config": {"sampler": "balanced"}}, "key 'sampler': 'balanced' is not known"),
                 ({"filter_list": [{"name": "n", "filter": [{"function": "regex", "regex_pattern": "("}]}]}, "is no regular expression"),
                 ({"generation_kwargs": {"until": ["x"]}}, "goes with output_type generate_until"),
                 ({"output_type": "generate_until", "doc_to_choice": None, "generation_kwargs": {"temperature": 1}}, "0 is expected"),
                 ({"repeats": 3}, "key 'repeats': an answer is asked for once"),
                 ({"include": "task.json"}, "files include each other"),
                 ({"include": "nosuch.yaml"}, "nosuch.yaml: No such file or directory")]
        for change, words in cases:
            with self.subTest(change=change):
                self.write_task("")
                keys = {key: value for key, value in {**good, **change}.items() if value is not None}
                (self.folder / "task.json").write_text(json.dumps(keys))
                result = self.ask("llama", [str(self.folder / "task.json")], code=4)
                self.assertIn(words, result.err)
        for text, words in (("task: t\nprocess_docs: !function utils.f\n", "key 'process_docs': needs Python (!function utils.f)"),
                            ("task: [", "line 2"), ("- a\n- b\n", "neither a key 'task'"), ("", "neither a key 'task'")):
            with self.subTest(text=text):
                self.assertIn(words, self.ask("llama", [str(self.write_task(text))], code=4).err)
        for rows, words in ((["x"], "is no object of columns"), ([], "has no rows"), ([{"q": "x", "a": 0}], "key 'doc_to_choice': rows have no column 'c', but a, q")):
            task = self.write_task(json.dumps(good), rows)
            with self.subTest(rows=rows):
                self.assertIn(words, self.ask("llama", [str(task)], code=4).err)
        self.assertIn("nosuch.yaml: No such file or directory", self.ask("llama", ["nosuch.yaml"], code=4).err)
        result = self.ask("llama", ["helaswag"], code=2)
        self.assertIn("there is no task, group or task file 'helaswag'; did you mean 'hellaswag'?", result.err)
        result = self.ask("llama", ["hellaswag"], code=4)
        self.assertIn("Rowan/hellaswag: No such file or directory", result.err)

    # The shipped tasks

    def cached(self, name, files):
        """Puts tables into a cache of the hub: {PATH: rows}."""
        import pyarrow  # pylint: disable=import-outside-toplevel
        import pyarrow.parquet  # pylint: disable=import-outside-toplevel
        repo = self.folder / "hub" / f"datasets--{name.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs/main").write_text("0" * 40)
        for path, rows in files.items():
            file = repo / "snapshots" / ("0" * 40) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)

    def shipped(self, *names):
        log = self.folder / "samples.jsonl"
        model = self.folder / "model"
        if not model.exists():  # with room for prompts of five examples and answers of 256 ids
            shutil.copytree(FIXTURES / "models/llama", model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2048}))
        result = fsdp_cli.run("fsdp-eval", [model, "--json", *fsdp_cli.COMMON, "--log-samples", log, "--tasks", *names],
                              env={"HF_HUB_CACHE": str(self.folder / "hub")})
        self.assertEqual(result.code, 0, str(result))
        return result.json(), [json.loads(line) for line in log.read_text().splitlines()]

    def arguments(self, sample):
        return [tuple(one.values()) for one in sample["arguments"].values()]

    def test_shipped_tasks(self):
        with fsdp_cli.needed():
            import pyarrow  # pylint: disable=import-outside-toplevel,unused-import
        self.cached("Rowan/hellaswag", {"data/validation-00000-of-00001.parquet": [
            {"ind": 4, "activity_label": "Baking", "ctx_a": " A man [header] mixes  dough. [title] Then", "ctx_b": "the MAN",
             "endings": ["[step] waits.", " eats  it [title] now", "x", "y"], "label": "1"}]})
        self.cached("allenai/ai2_arc", {"ARC-Easy/test-00000-of-00001.parquet": [
            {"question": "Which?", "choices": {"text": ["sun", "moon", "sea"], "label": ["1", "2", "3"]}, "answerKey": "2"}]})
        self.cached("allenai/winogrande", {"winogrande_xl/validation/0000.parquet": [
            {"sentence": "Ada thanked Mira because _ helped her.", "option1": "Ada", "option2": "Mira", "answer": "2"}]})
        self.cached("truthfulqa/truthful_qa", {"multiple_choice/validation-00000-of-00001.parquet": [
            {"question": "Is it so?", "mc1_targets": {"choices": ["Yes", "No"], "labels": [1, 0]},
             "mc2_targets": {"choices": ["Yes", "Maybe", "No"], "labels": [1, 1, 0]}}]})
        page = " = A page = \n He said \" so \" , in 1 @,@ 000 @-@ year ( old ) [ a ] ; N 's s ' x 5 ° C . \n"
        self.cached("EleutherAI/wikitext_document_level", {"wikitext-2-raw-v1/test-00000-of-00001.parquet": [{"page": page}]})
        self.cached("openai/gsm8k", {"main/test-00000-of-00001.parquet": [{"question": "1 + 1?", "answer": "It is 2.\n#### 2"}],
                                     "main/train-00000-of-00001.parquet": [{"question": f"{i} + 0?", "answer": f"#### {i}"} for i in range(9)]})
        subjects = [{"question": " Q ", "choices": ["w", "x", "y", "z"], "answer": 2, "subject": "anatomy"}]
        self.cached("cais/mmlu", {"anatomy/test-00000-of-00001.parquet": subjects, "anatomy/dev-00000-of-00001.parquet": subjects * 5})
        names = ["hellaswag", "arc_easy", "winogrande", "truthfulqa_mc2", "wikitext", "gsm8k", "mmlu_anatomy"]
        report, samples = self.shipped(*names)
        by_task = {sample["task"]: sample for sample in samples}
        context = "Baking: A man mixes dough. . Then The man"
        self.assertEqual(self.arguments(by_task["hellaswag"]), [(context.replace("dough. . ", "dough.. "), " " + text)
                                                                for text in (" waits.", "eats it. now", "x", "y")])
        self.assertEqual(self.arguments(by_task["arc_easy"]), [("Question: Which?\nAnswer:", " " + text) for text in ("sun", "moon", "sea")])
        self.assertEqual(self.arguments(by_task["winogrande"]),
                         [(f"Ada thanked Mira because {name}", " helped her.") for name in ("Ada", "Mira")])
        mc2 = by_task["truthfulqa_mc2"]
        self.assertTrue(self.arguments(mc2)[0][0].endswith("held in Barcelona, Spain.\n\nQ: Is it so?\nA:"))
        chances = [math.exp(float(one[0][0])) for one in mc2["resps"]]
        self.assertAlmostEqual(mc2["acc"], (chances[0] + chances[1]) / sum(chances), delta=1e-12)
        self.assertEqual(self.arguments(by_task["wikitext"]),
                         [(' = A page =\nHe said "so", in 1,000-year (old) [a]; 1\'s s\' x 5°C.\n',)])
        self.assertEqual(by_task["wikitext"]["word_perplexity"][1], len(page.split()) + 2)  # white space at both ends
        self.assertEqual(by_task["wikitext"]["byte_perplexity"][1], len(page.encode()))
        prompt = self.arguments(by_task["gsm8k"])[0][0]
        self.assertEqual(prompt.count("Question: "), 6)
        self.assertTrue(prompt.endswith("\n\nQuestion: 1 + 1?\nAnswer:"), prompt)
        self.assertIn("exact_match,strict-match", report["results"]["gsm8k"])
        shot = "Q\nA. w\nB. x\nC. y\nD. z\nAnswer:"
        head = "The following are multiple choice questions (with answers) about anatomy.\n\n"
        self.assertEqual(self.arguments(by_task["mmlu_anatomy"]), [(head + shot, f" {letter}") for letter in "ABCD"])
        _, samples = self.shipped("mmlu_anatomy", "--num-fewshot", 2)
        self.assertEqual(self.arguments(samples[0])[0][0], head + f"{shot} C\n\n" * 2 + shot)

    def test_the_data_is_fetched_once(self):
        with fsdp_cli.needed():
            import pyarrow  # pylint: disable=import-outside-toplevel
            import pyarrow.parquet  # pylint: disable=import-outside-toplevel

        def table(word):
            sink = pyarrow.BufferOutputStream()
            rows = [{"question": word, "choices": {"text": ["sun", "moon"], "label": ["A", "B"]}, "answerKey": "B"}] * 3
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
            return sink.getvalue().to_pybytes()

        files = {f"{config}/{split}/0000.parquet": table(f"{config} {split}") for config in ("ARC-Easy", "ARC-Challenge")
                 for split in ("train", "validation", "test")}
        needed = ["ARC-Easy/test/0000.parquet", "ARC-Easy/train/0000.parquet"]
        repo = hub_server.Repo(files, refs={"refs/convert/parquet": 1})
        with hub_server.HubServer({("dataset", "allenai/ai2_arc"): repo}) as hub:
            env = {"HF_ENDPOINT": hub.url(), "HF_HUB_CACHE": str(self.folder / "hub")}
            plan = fsdp_cli.run("fsdp-download", ["--tasks", "arc_easy", "--dry-run", "--json"], env=env)
            self.assertEqual(plan.code, 0, str(plan))
            size = sum(len(files[path]) for path in needed)
            self.assertEqual(plan.json()["data_sets"], [{"repo": "allenai/ai2_arc", "files": 2, "bytes": size, "bytes_to_fetch": size}])
            fetched = fsdp_cli.run("fsdp-download", ["--tasks", "arc_easy"], env=env)
            self.assertEqual(fetched.code, 0, str(fetched))
            asked = [request.path for request in hub.requests()]
            self.assertFalse([path for path in asked if "Challenge" in path or "validation" in path])
        env["HF_ENDPOINT"] = "http://127.0.0.1:9"
        verified = fsdp_cli.run("fsdp-download", ["--tasks", "arc_easy", "--verify"], env=env)
        self.assertEqual(verified.code, 0, str(verified))
        _, samples = self.shipped("arc_easy", "--num-fewshot", 1)
        self.assertEqual(self.arguments(samples[0])[0],
                         ("Question: ARC-Easy train\nAnswer: moon\n\nQuestion: ARC-Easy test\nAnswer:", " sun"))
        for arguments, words in ((["--tasks", "arc_easy", "a/b"], ""), ([], "name a repository"), (["a/b", "--tasks", "arc_easy"], "name a repository"),
                                 (["--tasks", "arc_easy", "--type", "model"], "--tasks chooses files itself")):
            result = fsdp_cli.run("fsdp-download", arguments, env=env)
            self.assertEqual(result.code, 2, str(result))
            self.assertIn(words, result.err)

    def test_the_page_s_task(self):
        page = (ROOT / "docs/benchmarks.md").read_text()
        task, rows = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("yaml", "json"))
        (self.folder / "capitals.yaml").write_text(task)
        (self.folder / "capitals.jsonl").write_text(rows)
        report, samples = self.ask("llama", [str(self.folder / "capitals.yaml")])
        self.assertEqual(report["n-samples"]["capitals"], {"original": 2, "effective": 2})
        self.assertEqual(self.arguments(samples["capitals"][0])[1], ("Question: What is the capital of Norway?\nAnswer:", " Bergen"))

    def test_one_table_of_several_results(self):
        files = []
        for model, shots in (("llama", 0), ("gpt2", 0), ("gpt2", 2)):
            report, _ = self.ask(model, ["pairs", "sums"], "--limit", 4, "--num-fewshot", shots)
            files.append(self.folder / f"{model}-{shots}.json")
            files[-1].write_text(json.dumps(report))
        lm_eval = {"model_name": str(FIXTURES / "models/of-lm-eval"), **expected()["default"]["llama"]["results"]}
        files.append(self.folder / "lm-eval.json")
        files[-1].write_text(json.dumps(lm_eval))
        result = fsdp_cli.run("fsdp-eval", ["--results", *files])
        self.assertEqual(result.code, 0, str(result))
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.out.splitlines()]
        self.assertEqual(lines[0], ["Tasks", "Filter", "n-shot", "Metric", "llama", "gpt2", "gpt2", "of-lm-eval"])
        rows = {}
        for task, *cells in lines[2:]:
            name = task or name
            rows[(name, *cells[:3])] = cells[3:]
        row = rows[("pairs", "none", "0", "acc ↑")]
        self.assertEqual([cell != "" for cell in row], [True, True, False, True])
        self.assertRegex(row[0], r"^\d\.\d{4} ± \d\.\d{4}$")
        self.assertEqual(rows[("pairs", "none", "2", "acc ↑")][:2], ["", ""])
        self.assertIn(("pages", "none", "0", "bits_per_byte ↓"), rows)
        (self.folder / "none.json").write_text("{}")
        self.assertIn("none.json: holds no results", fsdp_cli.run("fsdp-eval", ["--results", self.folder / "none.json"]).err)

    def test_beside_other_evaluations(self):
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps({"text": "Jonas counts the drum in Aldem"[:10 + i]}) + "\n" for i in range(9)))
        report, samples = self.ask("llama", ["endings"], "--limit", 3, "--data", texts)
        alone = self.evaluate(FIXTURES / "models/llama", "--data", texts)
        self.assertAlmostEqual(report["loss"], alone["loss"], delta=1e-6)
        self.assertEqual(samples, self.ask("llama", ["endings"], "--limit", 3)[1])

    def test_list(self):
        result = fsdp_cli.run("fsdp-eval", ["--tasks", "list"])
        self.assertEqual(result.code, 0, str(result))
        for name in ("hellaswag", "mmlu_anatomy", "mmlu ", "gsm8k"):
            self.assertIn(name, result.out)

    def test_compare_and_gate(self):
        models = [FIXTURES / "models" / name for name in ("llama", "qwen2")]
        line = ["--compare", *models, "--json", *fsdp_cli.COMMON, "--include-path", TASKS]
        result = fsdp_cli.run("fsdp-eval", [*line, "--gate", "letters.acc:0.9", "--gate", "endings.acc:0", "--tasks", "letters", "endings"])
        self.assertEqual(result.code, 3, str(result))
        metrics = result.json()["comparison"]["metrics"]
        self.assertAlmostEqual(metrics["endings.acc"]["difference"], -0.05, delta=1e-12)
        self.assertGreater(metrics["endings.acc"]["standard_error"], 0)
        right = []
        for model in ("llama", "qwen2"):
            _, samples = self.ask(model, ["endings"])
            right.append([sample["acc"] for sample in samples["endings"]])
        only = [sum(one > other for one, other in zip(first, second)) for first, second in (right, right[::-1])]
        tail = sum(math.comb(sum(only), k) for k in range(min(only) + 1)) / 2**sum(only)
        self.assertGreater(sum(only), 0)
        mcnemar = metrics["endings.acc"]["mcnemar"]
        self.assertEqual([mcnemar["only_a"], mcnemar["only_b"]], only)
        self.assertAlmostEqual(mcnemar["p"], min(1, 2 * tail), delta=1e-12)
        self.assertNotIn("mcnemar", metrics["endings.brier_score"])
        for more, title in (((), r"(?m)^metric +A +B +B - A .* only A right +only B +p \(McNemar\)$"),
                            (("--markdown",), r"(?m)^\|metric +\| +A\| +B\| +B - A\|.*p \(McNemar\)\|$")):
            table = fsdp_cli.run("fsdp-eval", [word for word in line if word != "--json"] + [*more, "--tasks", "endings"])
            self.assertRegex(table.out, title)
        result = fsdp_cli.run("fsdp-eval", [*line, "--gate", "endings.nosuch:0.9", "--tasks", "endings"])
        self.assertEqual(result.code, 2, str(result))
        self.assertIn("the tasks have no such metric, but endings.acc", result.err)

    def log_likelihoods(self, model, *more):
        report, samples = self.ask(model, ["endings", "letters_rivers"], "--limit", 8, *more)
        return [float(one[0][0]) for of_task in samples.values() for sample in of_task for one in sample["resps"]]

    def test_adapters_and_four_bits(self):
        base = FIXTURES / "models/llama"
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps({"text": f"Jonas counts: {i} + 1"}) + "\n" for i in range(20)))
        tuned = fsdp_cli.run("fsdp-finetune", ["--model", base, "--train-data", texts, "--documents", "--out-dir", self.runs, "--run-name", "lora", "--lora-rank", 4,
                                               "--lr", "1e-2", "--max-steps", 3, *fsdp_cli.COMMON], 2)
        self.assertEqual(tuned.code, 0, str(tuned))
        latest, merged, small = self.checkpoints("lora") / "latest", self.folder / "merged", self.folder / "small"
        for arguments in ([base, merged, "--to", "hf", "--merge-adapter", latest], [base, small, "--to", "hf", "--quantize", "nf4"]):
            made = fsdp_cli.run("fsdp-ckpt-convert", arguments)
            self.assertEqual(made.code, 0, str(made))
        plain, with_adapter = self.log_likelihoods(base), self.log_likelihoods(latest)
        self.assertGreater(max(abs(a - b) for a, b in zip(plain, with_adapter)), 1e-2)
        for one, other in zip(with_adapter, self.log_likelihoods(merged), strict=True):
            self.assertAlmostEqual(one, other, delta=1e-4)  # products of the adapter and of the merged matrix are rounded otherwise
        in_4_bits = self.log_likelihoods(base, "--quantize", "nf4")
        self.assertGreater(max(abs(a - b) for a, b in zip(plain, in_4_bits)), 1e-2)
        self.assertEqual(in_4_bits, self.log_likelihoods(small))

    def test_chat_template(self):
        _, samples = self.ask("qwen2", ["delim_arrow", "sums"], "--chat-template", "chatml", "--apply-chat-template", "--limit", 1)
        context, choice = list(samples["delim_arrow"][0]["arguments"]["gen_args_0"].values())
        plain = expected()["default"]["requests"]["delim_arrow"][0]["arguments"][0][0]
        parts = plain.replace(" -> ", "\0").replace(";", "\0").split("\0")
        first, rest = parts[0].split("\n\n")
        turns = [("system", first + "\n\n"), ("user", rest), ("assistant", parts[1]), ("user", parts[2]), ("assistant", parts[3]), ("user", parts[4])]
        written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
        self.assertEqual(context, written)
        self.assertFalse(choice.startswith(" -> "))
        _, samples = self.ask("qwen2", ["delim_arrow"], "--chat-template", "chatml", "--apply-chat-template", "--limit", 1, "--fewshot-as-multiturn=false")
        context = samples["delim_arrow"][0]["arguments"]["gen_args_0"]["arg_0"]
        self.assertEqual(context.count("<|im_start|>"), 3)
        self.assertIn(plain[len(first) + 2:], context)


if __name__ == "__main__":
    fsdp_cli.main()
