"""Runs whose options are in axolotl's YAML train as the equivalent command lines do. The keys: tests/unit/apps/common."""

import json
import random
import re
import string

import fsdp_cli
import llama_cli

TEMPLATE = ("{% for message in messages %}{{ message.role }}: {% if message.role == 'assistant' %}{% generation %}{{ message.content }}"
            "{{ eos_token }}{% endgeneration %}{% else %}{{ message.content }}\n{% endif %}{% endfor %}")

LORA = """\
# adapters on conversations
base_model: {model}
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
strict: false

chat_template_jinja: {template}
datasets:
  - path: {chats}
    type: chat_template
    field_messages: conversations
    message_property_mappings:
      role: from
      content: value
    roles:
      user: [human, user]
      assistant:
        - gpt
dataset_prepared_path:
val_set_size: 0.1
output_dir: {runs}/lora

adapter: lora
lora_model_dir:
lora_r: 8
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
  - q_proj
  - v_proj

sequence_len: 128
wandb_project:
wandb_entity:

gradient_accumulation_steps: 2
micro_batch_size: 2
max_steps: 4
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-3
warmup_steps: 2

train_on_inputs: false
bf16: false
tf32: false
gradient_checkpointing: true
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
seed: 7
"""
LORA_LINE = ["--chat-template", "{template}", "--train-data", "{chats}", "--data-form", "messages", "--data-field", "conversations", "--val-split", 0.1,
             "--lora-rank", 8, "--lora-alpha", 16, "--lora-dropout", 0.05, "--lora-targets", "q_proj,v_proj", "--seq-len", 128,
             "--gradient-accumulation-steps", 2, "--batch-size", 2, "--max-steps", 4, "--lr-schedule", "cosine", "--lr", "2e-3",
             "--warmup-steps", 2, "--warmup-from", 0, "--gradient-checkpointing", "--eval-every", 1, "--save-every", "1epoch",
             "--weight-decay", 0, "--seed", 7]

QLORA = """\
base: &base
  path: {texts}
  type: completion
base_model: {model}
load_in_4bit: true
adapter: qlora
lora_r: 4
lora_alpha: 8
lora_target_linear: true
datasets:
  - <<: *base
    split: train
test_datasets: [{{<<: *base, path: {others}}}]
sequence_len: 64
excess_length_strategy: truncate
micro_batch_size: 2
max_steps: 3
optimizer: adamw_bnb_8bit
lr_scheduler: linear
learning_rate: 0.001
warmup_ratio: 0.5
bf16: true
output_dir: {runs}/qlora
"""
QLORA_LINE = ["--train-data", "{texts}", "--data-form", "text", "--val-data", "{others}", "--quantize", "nf4", "--double-quant", "--lora-rank", 4,
              "--lora-alpha", 8, "--seq-len", 64, "--batch-size", 2, "--max-steps", 3, "--optimizer", "adamw8bit", "--lr-schedule", "linear",
              "--lr", "1e-3", "--warmup-ratio", 0.5, "--warmup-from", 0, "--precision", "bf16", "--weight-decay", 0]

FULL = """\
base_model: {model}
datasets: [{{path: {texts}, type: completion, field: text, ds_type: json}}]
val_set_size: 0.05
output_dir: {runs}/full
sequence_len: 128
sample_packing: true
pad_to_sequence_len: true
micro_batch_size: 1
gradient_accumulation_steps: 2
max_steps: 3
optimizer: adamw_torch_fused
adam_beta2: 0.95
lr_scheduler: cosine
cosine_min_lr_ratio: 0.1
learning_rate: 1.0e-3
warmup_ratio: 0.0
weight_decay: 0.1
max_grad_norm: 0.5
fp16: false
bf16: false
fsdp_version: 2
fsdp_config:
  reshard_after_forward: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""
FULL_LINE = ["--train-data", "{texts}", "--val-split", 0.05, "--seq-len", 128, "--pack", "--batch-size", 1, "--gradient-accumulation-steps", 2,
             "--max-steps", 3, "--betas", 0.9, 0.95, "--lr-schedule", "cosine", "--min-lr-ratio", 0.1, "--lr", "1e-3", "--warmup-ratio", 0,
             "--weight-decay", 0.1, "--decay-all=false", "--clip-grad-norm", 0.5, "--sharding", "grad-shard", "--data-form", "text"]


class Axolotl(llama_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.template, cls.chats = cls.folder / "template.jinja", cls.folder / "chats.jsonl"
        cls.template.write_text(TEMPLATE)
        cls.texts, cls.others = cls.folder / "texts.jsonl", cls.folder / "others.jsonl"
        for file, games in ((cls.texts, cls.games), (cls.others, cls.validation)):
            texts = [json.loads(line)["text"][:80] for line in games.read_text().splitlines()[:50]]
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        talks = [[{"from": "human", "value": f"To be or not {i}?"}, {"from": "gpt", "value": "That is the question, " * (i % 3 + 1)}] for i in range(40)]
        cls.chats.write_text("".join(json.dumps({"conversations": talk}) + "\n" for talk in talks))

    def filled(self, text):
        return text.format(model=self.model, template=self.template, chats=self.chats, texts=self.texts, others=self.others, runs=self.runs)

    def finetune(self, *arguments, ranks=0):
        result = fsdp_cli.run("fsdp-finetune", [*arguments, *fsdp_cli.COMMON], ranks)
        self.assertEqual(result.code, 0, str(result))
        return result

    def test_files_train_as_their_command_lines(self):
        for name, text, line in (("lora", LORA, LORA_LINE), ("qlora", QLORA, QLORA_LINE), ("full", FULL, FULL_LINE)):
            with self.subTest(name):
                file = self.folder / f"{name}.yaml"
                file.write_text(self.filled(text))
                result = self.finetune("--config", file, "--json")
                line = [self.filled(word) if isinstance(word, str) else word for word in line]
                self.finetune("--model", self.model, *line, "--out-dir", self.runs, "--run-name", f"{name}-line")
                self.assertEqual(self.losses(name), self.losses(f"{name}-line"))
                self.assertEqual([r["lr"] for r in fsdp_cli.steps(self.run_directory(name))],
                                 [r["lr"] for r in fsdp_cli.steps(self.run_directory(f"{name}-line"))])
                evaluated = [[r["val_loss"] for r in fsdp_cli.records(self.run_directory(run)) if "val_loss" in r] for run in (name, f"{name}-line")]
                self.assertEqual(evaluated[0], evaluated[1])
                self.assertTrue(evaluated[0])
                self.assertIn(f"ignored   {file}: ", result.err)
                ignored = result.json()["ignored"]
                self.assertIn({"lora": "flash_attention", "qlora": "datasets[0].split", "full": "fsdp_version"}[name], ignored[str(file)])

    def test_what_is_left_out_is_told_and_a_converted_file_is_the_same_job(self):
        file, ini = self.folder / "short.yaml", self.folder / "short.ini"
        file.write_text(self.filled("base_model: {model}\ndatasets: [{{path: {texts}, type: completion}}]\nlearning_rate: 1e-4\n"
                                    "output_dir: {runs}/short\nexcess_length_strategy: truncate\nsequence_len: 64\n"))
        told = self.finetune("--config", file, "--dry-run").err
        self.assertIn(f"left out  {file}: as in axolotl lr_scheduler: cosine, warmup_ratio: 0.03, weight_decay: 0, bf16: bf16, micro_batch_size: 1", told)
        ini.write_text(fsdp_cli.run("fsdp-finetune", ["--config", file, "--print-config"]).out)
        def plan(text):
            return [line for line in text.splitlines() if not line.startswith(("ignored", "left out", "speed", "length", "encoded"))]
        self.assertEqual(plan(self.finetune("--config", ini, "--dry-run").err), plan(told))

    def test_ranks_and_sweeps(self):
        file = self.folder / "ranks.yaml"
        file.write_text(self.filled(FULL).replace("/full", "/ranks").replace("max_steps: 3", "max_steps: 2"))
        self.finetune("--config", file, "--sweep", "lr=1e-3,1e-4", ranks=2)
        self.assertEqual(sorted(run.name for run in (self.runs / "ranks").glob("lr-*")), ["lr-1e-3", "lr-1e-4"])

    def test_hostile_files_are_refused_in_time(self):
        bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
        for name, text, word in (("bomb", bomb, "16 MiB"), ("deep", "a: " + "[" * 100_000, "levels"), ("deeper", "a: " + "{a: " * 100_000, "levels"),
                                 ("large", "a: b\n" + "# x\n" * 300_000, "1 MiB"), ("python", "a: !!python/object/apply:os.system [ls]\n", "python/object"),
                                 ("binary", "seed: \x00\n", "byte"), ("tabs", "seed: 1\n\tlr: 1\n", "line")):
            with self.subTest(name):
                file = self.folder / f"{name}.yaml"
                file.write_text(text)
                self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", file], limit_seconds=20), 2, file, word)

    def test_damaged_files_never_crash(self):
        generator, file = random.Random(5), self.folder / "damaged.yaml"
        text = self.filled(LORA)
        for number in range(40):
            letters = list(text)
            for _ in range(generator.randint(1, 8)):
                at = generator.randrange(len(letters))
                letters[at:at + generator.randint(0, 3)] = generator.choice(string.punctuation + " \n\t")
            file.write_text("".join(letters))
            result = fsdp_cli.run("fsdp-finetune", ["--config", file, "--print-config"])
            with self.subTest(number, text="".join(letters)):
                self.assertIn(result.code, (0, 2), str(result))
                self.assertEqual(len(result.errors()), 1 if result.code else 0, str(result))


SCALARS = """yes Yes YES yEs no NO on Off OFF true True TRUE false y n 0 -0 +0 1 -1 +12 1_000 010 -010 0o10 08 09 0x1F -0xff 0b101 1e3 1e-4 1.0e-4 1.0e4 1.0E+4
1. .5 -.5 +1.5 1_0.5_0 1:30 -1:30 1:60 1:30:15 1:30.5 190:20:30 685_230.15 .inf -.INF +.inf .nan .NaN 1.2.3 0. 00 000 0.0 -0.0 12e03 _1 1_ 0_ 2001-12-14
a#b a:b ::vector x=y 'x' "x" 'it''s' "a\\tb" "\\x41\\u00e9" !!str 12 !!str true !!int "3" !!float "2" ! 12 é 日本 "" ' ' - ? : a,b \\n %x""".replace("- ? :", "-a ?b :c")


class Scalars(fsdp_cli.Case):
    def test_scalars_are_read_as_by_pyyaml(self):
        try:
            import yaml
        except ImportError as missing:
            self.skipTest(str(missing))
        words = re.findall(r"!!?\w* \S+|'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\"|\S+", SCALARS)
        words = [word for word in words if word != "%x"]
        file = self.folder / "scalars.yaml"
        file.write_text("sample_prompt:\n" + "".join(f"  - {word}\n" for word in words), encoding="utf-8")
        wanted = yaml.safe_load(file.read_text(encoding="utf-8"))["sample_prompt"]
        self.assertGreater(len(wanted), 80)
        result = fsdp_cli.run("fsdp-finetune", ["--config", file, "--print-config"])
        self.assertEqual(result.code, 0, str(result))
        line = next(line for line in result.out.splitlines() if line.startswith("sample-prompt="))
        found = re.findall(r'""".*?"""|"[^"]*"|\'[^\']*\'|[^\[\], ]+', line.removeprefix("sample-prompt="))
        self.assertEqual(len(found), len(wanted), line)
        for word, here, there in zip(words, found, wanted):
            with self.subTest(word):
                if here.startswith('"""'):
                    text = here[3:-3].encode().decode("unicode_escape")
                else:
                    text = here[1:-1] if here[0] in "\"'" else here
                if isinstance(there, bool):
                    self.assertEqual(text, str(there).lower())
                elif isinstance(there, float):
                    self.assertEqual(repr(float(text)), repr(there))
                else:
                    self.assertEqual(text, str(there))


if __name__ == "__main__":
    fsdp_cli.main()
