#!/usr/bin/env python3
"""Shows that the checks layers.py, file_length.py, function_length.py, namespaces.py, one_door.py, option_words.py, plain_words.py and doc_links.py fail on small trees with one fault each."""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# check, file, content, words that the complaint must hold (None: must pass)
CASES = [
    ("layers.py", "lib/base/types/a.hpp", '#include "lib/formats/b.hpp"\n', "lib/base is below lib/formats"),
    ("layers.py", "lib/engine/collectives/a.cpp", '#include "lib/engine/fsdp/b.hpp"\n', "lib/engine/collectives is below lib/engine/fsdp"),
    ("layers.py", "lib/tokenizers/bpe/a.cpp", '#include "lib/compute/ops/b.hpp"\n', "are on one floor"),
    ("layers.py", "lib/token_files/a.cpp", "#include <ATen/core/Tensor.h>\n", "lib/token_files must stay free of LibTorch"),
    ("layers.py", "lib/training/run/a.cpp", "#include <CLI/CLI.hpp>\n", "only apps/"),
    ("layers.py", "lib/extra/a.cpp", "\n", "has no place"),
    ("layers.py", "lib/checkpoints/extra/a.cpp", "\n", "lib/checkpoints/extra has no place"),
    ("layers.py", "lib/checkpoints/a.cpp", "\n", "lib/checkpoints has no place"),
    ("layers.py", "lib/base/types/a.cpp", "\n#include <cpuid.h>\n", "only one architecture has it"),
    ("layers.py", "docs/design.md", "    base\n", "its list of layers is not this one"),
    ("layers.py", "CONTRIBUTING.md", "\n`lib/run` is gone\n", "CONTRIBUTING.md:2: lib/run: there is no such path"),
    ("layers.py", "CONTRIBUTING.md", "`apps/gone.cpp`\n", "CONTRIBUTING.md:1: apps/gone.cpp: there is no such path"),
    ("layers.py", "lib/models/layers/a.cpp", "  if (x.is_meta()) return;\n", "lib/models/layers/a.cpp:1: is_meta: lib/models knows no devices"),
    ("layers.py", "lib/training/step/a.cpp", "  at::mm_out(out, a, b);\n", "mm_out: lib/training knows no devices"),
    ("layers.py", "lib/compute/ops/a.cpp", "torch::autograd::backward({x});\n", "no autograd"),
    ("layers.py", "lib/compute/ops/a.cpp", "  at::mm_out(out, a, b);  // not autograd's\n", None),
    ("layers.py", "lib/compute/ops/a.cpp", "  at::parallel_for(0, n, 1, body);\n", "would run on one thread"),
    ("layers.py", "lib/compute/tensor/parallel.cpp", "  at::parallel_for(0, n, 1, body);\n", None),
    ("layers.py", "lib/engine/fsdp/a.cpp", '#include "lib/engine/collectives/b.hpp"\n#include "lib/engine/fsdp/c.hpp"\n', None),
    ("layers.py", "lib/compute/tensor/a.cpp", '#include "lib/compute/kernels/b.hpp"\n#include <ATen/core/Tensor.h>\n', None),
    ("file_length.py", "lib/base/types/a.cpp", "//\n" * 801, "801 lines"),
    ("file_length.py", "lib/base/types/a.hpp", "//\n" * 301, "301 lines"),
    ("file_length.py", "lib/base/types/a.cpp", "// Long because it is a test.\n" * 5001, "lib/base/types: 1 sources with 5001 lines"),
    ("file_length.py", "scripts/a", "#!/bin/sh\n" * 801, "801 lines"),
    ("file_length.py", "lib/base/types/a.cpp", "//\n" * 800, None),
    ("file_length.py", "lib/base/types/a.cpp", "// Long because it is one table.\n" + "//\n" * 800, None),
    ("file_length.py", "README.md", "word " * 25 + "\n", "README.md:1: 125 characters"),
    ("file_length.py", "README.md", "| " + "word " * 25 + "|\n\n    " + "word " * 25 + "\n", None),
    ("function_length.py", "lib/base/types/a.cpp", "int f(int a) {\n" + "  ++a;\n" * 79 + "}\n", "f() has 81 lines"),
    ("function_length.py", "lib/base/types/a.cpp", "namespace x {\nA::A(int a) : a_{a} {\n" + "  // }\n" * 79 + "}\n}\n", "A::A() has 81 lines"),
    ("function_length.py", "lib/base/types/a.hpp", "struct A {\n  std::map<int, int> f(int, std::map<int, int> b, int, int, int, int, int, int, int) const {}\n};\n", "f() has 9 parameters"),
    ("function_length.py", "lib/base/types/a.cpp", "int f(int, std::map<int, int> b, int, int, int, int, int, int) {\n" + "  ++a;\n" * 78 + "}\n", None),
    ("namespaces.py", "lib/base/types/a.hpp", "namespace fsdp {\n}\n\nnamespace fsdp::detail {\n}\n", "a.hpp:4: opens `namespace fsdp` again"),
    ("namespaces.py", "lib/base/types/a.hpp", "namespace fsdp::detail {\n}\nnamespace fsdp {\n}\n", "a.hpp:3: opens `namespace fsdp` again"),
    ("namespaces.py", "apps/eval/a.cpp", "namespace {\n}\nint a;\nnamespace {\n}\n", "a.cpp:4: opens an anonymous namespace again"),
    ("namespaces.py", "lib/base/types/a.cpp", "namespace fsdp {\nnamespace detail {\nnamespace {\n}\n}\nnamespace {\n}\n}\n", "a.cpp:6: opens an anonymous namespace again, which line 3 does"),
    ("namespaces.py", "lib/base/types/a.cpp", "namespace fs = std::filesystem;\nnamespace fsdp {\nnamespace {\n}\nnamespace detail {\n}\n}  // namespace fsdp\n", None),
    ("one_door.py", "lib/checkpoints/transform/a.cpp", '  const auto newest = run / "latest";\n', "a.cpp:1: answers 'which checkpoint of a run is the newest' itself"),
    ("one_door.py", "lib/training/run/a.cpp", "  const auto plan = plan_adapter(folder, modules);\n", "a.cpp:1: asks 'what does this adapter change' and is not in the list"),
    ("one_door.py", "lib/training/evaluate/subject.cpp", "int a;\n", "does not ask 'which tokenizer belongs to this input' any more"),
    ("one_door.py", "lib/training/run/a.cpp", "  run(b);  // has_tokenizer(b)\n", None),
    ("option_words.py", "lib/training/run/a.cpp", 'throw RequestError("x: give --lr");\n', 'a.cpp:1: "x: give --lr" names an option'),
    ("option_words.py", "lib/checkpoints/target/a.cpp", 'throw UsageError("x");\n', "a.cpp:1: UsageError is about options"),
    ("option_words.py", "lib/base/types/remedy.hpp", "enum class Remedy : int {\n  none,\n  check,  ///< x\n};\n", "nothing in lib names the remedy check"),
    ("option_words.py", "lib/training/run/a.cpp", '// "give --lr"\nx = "models--a-" + "<!--" + "a -- b";\n', None),
    ("plain_words.py", "lib/base/types/a.hpp", "/// Of the step behind it.\nint a;  ///< What is left\n", "a.hpp:1: a comment that begins with 'Of'"),
    ("plain_words.py", "lib/base/types/a.hpp", "int a;  ///< What is left\n", "begins with 'What'"),
    ("plain_words.py", "tests/unit/base/a_test.cpp", "// Of the step behind it.\n", "a_test.cpp:1: a comment that begins with 'Of'"),
    ("plain_words.py", "tests/cli/a_test.py", "x = 1\t# What is left\n", "a_test.py:1: a comment that begins with 'What'"),
    ("plain_words.py", "tests/cli/a_test.py", 'def f():\n    """Of each rank."""\n', "a_test.py:2: a comment that begins with 'Of'"),
    ("plain_words.py", "tests/cluster/a", "#!/bin/bash\n# Those of this node.\n", "a:2: a comment that begins with 'Those'"),
    ("plain_words.py", "scripts/jobs/a.sh", "f() { :; }\t# Whoever calls\n", "a.sh:1: a comment that begins with 'Whoever'"),
    ("plain_words.py", "slurm/a.sh", "# Who waits\n", "slurm/a.sh:1: a comment that begins with 'Who'"),
    ("plain_words.py", "pbs/a.pbs", "# Likewise\n", "pbs/a.pbs:1: a comment that begins with 'Likewise'"),
    ("plain_words.py", "cmake/a.cmake", "# Of the target\n", "cmake/a.cmake:1: a comment that begins with 'Of'"),
    ("plain_words.py", "packaging/docker/Dockerfile", "# What is packed\n", "Dockerfile:1: a comment that begins with 'What'"),
    ("plain_words.py", "packaging/modulefiles/a.lua", "-- What is there\n", "a.lua:1: a comment that begins with 'What'"),
    ("plain_words.py", ".ci/run", "#!/bin/sh\n# What runs\n", ".ci/run:2: a comment that begins with 'What'"),
    ("plain_words.py", "Makefile", "# What is made\n", "Makefile:1: a comment that begins with 'What'"),
    ("plain_words.py", "CMakeLists.txt", "# What is made\n", "CMakeLists.txt:1: a comment that begins with 'What'"),
    ("plain_words.py", "lib/base/types/a.hpp", "/// By its place.\nint a;\n", "a.hpp:1: a comment that begins with 'By its'"),
    ("plain_words.py", "lib/base/types/a.hpp", "int a;  // As many as there are\n", "a.hpp:1: a comment that begins with 'As many'"),
    ("plain_words.py", "lib/base/types/a.hpp", "// Without state of its own.\n", "a.hpp:1: a comment that begins with 'Without state of its own'"),
    ("plain_words.py", "lib/base/types/a.hpp", "/// A list that nobody reads.\n", "a.hpp:1: a comment says 'nobody'"),
    ("plain_words.py", "tests/cli/a_test.py", 'def f():\n    """Begins anew."""\n', "a_test.py:2: a comment says 'anew'"),
    ("plain_words.py", "lib/base/types/a.hpp", "int a;  ///< Llama and its kin\n", "a.hpp:1: a comment says 'kin'"),
    ("plain_words.py", "lib/base/types/a.hpp", "int a;  ///< the space behind it\n", "a.hpp:1: a comment says 'behind'"),
    ("plain_words.py", "docs/a.md", "It begins anew.\n", "docs/a.md:1: 'anew': use a plain word"),
    ("plain_words.py", "lib/base/types/a.hpp", "// A copy that is queued behind a kernel\nauto kin = \"anew\";\n", None),
    ("plain_words.py", "scripts/a.sh", "# The files\n# Of all ranks. What remains?\n# What for?\nx='# Of'\n", None),
    ("plain_words.py", "lib/base/types/a.hpp", "/// Bytes that are left, without those\n/// Of other ranks. Offers more.\n", None),
    ("doc_links.py", "docs/a.md", "[x](b.md)\n", "docs/a.md:1: b.md: there is no such file"),
    ("doc_links.py", "docs/a.md", "[x\ny](b.md)\n", "docs/a.md:2: b.md: there is no such file"),
    ("doc_links.py", "docs/a.md", "# One\n", "docs/README.md: does not list a.md"),
    ("doc_links.py", "docs/a.md", "# One\n\n[x](#two)\n", "docs/a.md:3: #two: a.md has no such heading"),
    ("doc_links.py", "docs/a.md", "| a |\n|---|\n| 1 |\n\n| 2 |\n", "docs/a.md:5: a row without the head"),
    ("doc_links.py", "README.md", "# Two `words`, (all)\n\n[`x`](README.md#two-words-all) `[y](z)`\n\n    [y](z)\n", None),
]


def main():
    failures = 0
    for check, name, content, words in CASES:
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
            done = subprocess.run([sys.executable, HERE / check, "--root", root], capture_output=True, text=True, check=False)
        as_expected = done.returncode == 0 if words is None else done.returncode == 1 and words in done.stdout
        if not as_expected:
            failures += 1
            print(f"{check} on {name}: expected {words or 'no complaint'}; got code {done.returncode}: {done.stdout}{done.stderr}")
    print(f"{len(CASES) - failures} of {len(CASES)} cases as expected")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
