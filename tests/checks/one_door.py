#!/usr/bin/env python3
"""Fails where a question about a user's input is answered past the one function that answers it, and where somebody asks
who is not in the list: programs that answer it twice come to differ.

    one_door.py [--root DIR]      the repository by default
    one_door.py --print           who asks what
"""
import argparse
import pathlib
import re
import sys

# question, the functions that answer it, who may ask, what only these files may use to answer it, these files
DOORS = [
    ("which tensors does this model have", r"(parameter_table|quantized_table|find_model_tensors)\(",
     ["lib/models/config", "lib/models/layers/decoder.cpp", "lib/planning/memory/prediction.cpp", "lib/training/state/load/plan_load.cpp",
      "lib/checkpoints/transform/model_tensors.cpp", "lib/checkpoints/programs/hf/hf_export.cpp", "lib/checkpoints/programs/fsdp1/parameter_shapes.cpp",
      "lib/checkpoints/programs/megatron/megatron_source.cpp", "lib/checkpoints/programs/megatron/megatron_export.cpp", "lib/checkpoints/programs/gguf/gguf_model.cpp", "lib/checkpoints/programs/gguf/gguf_weights.cpp",
      "lib/checkpoints/model/adapter_plan.cpp", "lib/checkpoints/model/base_weights.cpp", "lib/checkpoints/programs/trainers/trainer_source.cpp", "apps/memprobe/memprobe_search.cpp", "apps/memprobe/memprobe.cpp"],
     r"(decoder|falcon)_parameter_table\(", ["lib/models/config"]),
    ("which checkpoint of a run is the newest", r"(checkpoints_of_run|folder_of_newest|checkpoint_in_run)\(",
     ["lib/checkpoints/programs/fsdp_finetune/run_values.cpp", "lib/checkpoints/model/adapter_plan.cpp", "lib/checkpoints/model/base_weights.cpp",
      "apps/convert/convert_job.cpp", "lib/training/evaluate/subject.cpp", "lib/training/state/checkpoint.cpp",
      "apps/finetune/reports/run_record.cpp", "apps/finetune/finetune.cpp", "apps/finetune/sweep/sweep.cpp"],
     # The link is written by saves, kept by --prune, and shown by pages of runs, which read no checkpoint.
     r'/ "latest"', ["lib/checkpoints/programs/fsdp_finetune/run_values.cpp", "lib/training/state/latest_link.cpp", "lib/training/state/checkpoint.cpp",
                     "apps/convert/prune_run.cpp", "lib/reports/runs", "apps/finetune/reports/run_record.cpp"]),
    ("which tokenizer belongs to this input", r"\btokenizer_of\(",
     ["lib/checkpoints/programs/fsdp_finetune/run_values.cpp", "lib/checkpoints/programs/hf/hf_export.cpp", "lib/training/evaluate/subject.cpp",
      "apps/finetune/run_setup.cpp"],
     r"\bhas_tokenizer\(", ["lib/tokenizers", "lib/checkpoints/programs/fsdp_finetune/run_values.cpp", "lib/checkpoints/programs/hf/hf_export.cpp"]),
    ("what does this adapter change", r"\bplan_adapter(_of_model)?\(",
     ["lib/checkpoints/model/adapter_plan.cpp", "lib/checkpoints/model/merge_adapter.cpp", "lib/training/state/load/load.cpp",
      "lib/training/evaluate/subject.cpp", "apps/finetune/finetune_saved_options.cpp"],
     r"\b(read_adapter_config|adapter_config_from_json)\(",
     # Runs' own notes of their adapters are read by those that go on from a run.
     ["lib/models/config", "lib/checkpoints/model/adapter_plan.cpp", "lib/checkpoints/model/base_weights.cpp", "lib/checkpoints/model/unused_keys.cpp",
      "lib/training/evaluate/subject.cpp", "apps/finetune/finetune_saved_options.cpp"]),
]


def is_in(name, places):
    return any(name == place or name.startswith(place + "/") for place in places)


def lines_of(root):
    """Yields path, number and text of each line of the sources, without comments."""
    for folder in ("lib", "apps"):
        for path in sorted((root / folder).rglob("*.cpp")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield path.relative_to(root).as_posix(), number, line.split("//")[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--print", action="store_true")
    arguments = parser.parse_args()
    complaints, asked = [], {question: set() for question, *_ in DOORS}
    for name, number, line in lines_of(arguments.root):
        for question, door, askers, behind, owners in DOORS:
            if re.search(door, line):
                asked[question].add(name)
                if not is_in(name, askers):
                    complaints.append(f"{name}:{number}: asks '{question}' and is not in the list of tests/checks/one_door.py")
            if re.search(behind, line) and not is_in(name, owners):
                complaints.append(f"{name}:{number}: answers '{question}' itself: ask {door}")
    if arguments.print:
        for question, names in asked.items():
            print(f"{question}: {', '.join(sorted(names))}")
    for question, _, askers, _, _ in DOORS:
        for place in askers:
            if (arguments.root / place).exists() and not any(is_in(name, [place]) for name in asked[question]):
                complaints.append(f"{place}: does not ask '{question}' any more: take it from the list of tests/checks/one_door.py")
    print("\n".join(complaints))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
