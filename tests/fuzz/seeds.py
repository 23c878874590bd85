"""Seed inputs of the fuzz targets, cut from the checkpoints in tests/fixtures; text_seeds.py has those for texts."""

import io
import json
import pathlib
import pickle
import struct
import tarfile
import zipfile

import text_seeds

# In the order of the targets' `names`.
DCP_NAMES = [".metadata", "__0_0.distcp", "__1_0.distcp", "__0.metadata", "__1.metadata"]
HF_NAMES = ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors",
            "shard-00001-model-00001-of-00001.safetensors"]
DEEPSPEED_NAMES = ["mp_rank_00_model_states.pt", *(f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt" for kind in ("optim", "model") for rank in (0, 1)),
                   "zero/w/fp32.pt", "zero/w/exp_avg.pt", "zero/b/fp32.pt", "zero/b/step.pt", "zero/optimizer_state.pt"]
RANK_NAMES = [*(f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim") for rank in (0, 1)), "extra_state_world_size_2_rank_0.pt"]
TRAINER_NAMES = ["model.safetensors", "optimizer.bin", "scheduler.bin", "trainer_state.json", "config.json", "rng_state_0.pth", "pytorch_model_fsdp.bin",
                 *(f"{folder}/{name}" for folder in ("pytorch_model_fsdp_0", "optimizer_0") for name in (".metadata", "__0_0.distcp")), ".metadata",
                 "__0_0.distcp", "meta.pt", "latest-rank0.pt", "ep0-ba2-rank0.pt", "metadata.pkl", "model_0.safetensors", "model_1.safetensors",
                 "optimizer_0.pt", "config_0.json"]
MEGATRON_NAMES = [".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt", "config.json"]
LARGEST, LARGEST_FOLDER = 64 * 1024, 24 * 1024  # a larger folder costs executions and reaches nothing more


def without_checksums(data):
    """Returns the archives in `data` with "no CRC recorded", so that a changed byte gets past the checksum."""
    data = bytearray(data)
    at = data.find(b"PK\1\2")
    while at >= 0:
        data[at + 16:at + 20] = bytes(4)
        at = data.find(b"PK\1\2", at + 4)
    return bytes(data)


def archives(data):
    """Returns the torch.save archives that a DCP data file consists of."""
    while data:
        end = data.find(b"PK\5\6")
        if end < 0:
            return
        yield data[:end + 22]
        data = data[end + 22:]


def pickled(archive):
    """Returns data.pkl of a torch.save archive; None if Python's zip reader rejects the archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            name = next(n for n in file.namelist() if n.endswith("/data.pkl"))
            return file.read(name)
    except zipfile.BadZipFile:
        return None


def parts_of(data):
    """Returns pickle and storages of a torch.save archive as the targets' archives have them (fuzz_folder.hpp); None for other data."""
    if not data.startswith(b"PK") or data.count(b"PK\5\6") != 1:
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        folder = file.namelist()[0].split("/")[0]
        storages = sorted((name for name in file.namelist() if name.startswith(f"{folder}/data/")), key=lambda name: int(name.rsplit("/", 1)[1]))
        parts = [file.read(name) for name in (f"{folder}/data.pkl", *storages)]
    if [name.rsplit("/", 1)[1] for name in storages] != [str(number) for number in range(len(storages))]:
        return None
    return b"".join(struct.pack("<H", len(part)) + part for part in parts) if max(map(len, parts)) < 1 << 16 else None


def file_of(number, data):
    """Returns a file of an input: an archive as its parts, other data as they are."""
    parts = parts_of(data)
    return (number, without_checksums(data)) if parts is None else (number + 128, parts)


def small(paths, largest=LARGEST):
    return [data for data in (path.read_bytes() for path in sorted(paths)) if len(data) <= largest]


def zip_seeds(checkpoints):
    items = {item for name in ("dcp_*", "fsdp2_t211_ws4_zeroshard") for data in small(checkpoints.glob(f"{name}/ckpt/*.distcp"))
             for item in archives(data) if item.startswith(b"PK")}
    # One item per kind suffices: items of a kind differ only in their pickles.
    kinds = {}
    for item in sorted(items, key=lambda i: (len(i), i)):
        text = pickled(item) or b""
        kinds.setdefault((len(item) // 512, len(text) // 8), item)
    whole = [data for data in small(checkpoints.glob("pt_*/ckpt.pt")) if data.startswith(b"PK")]
    return [without_checksums(data) for data in kinds.values()] + list(kinds.values())[:8] + whole


def pickle_seeds(checkpoints):
    seeds = small(checkpoints.glob("*/ckpt/.metadata"), 16 * 1024) + small(checkpoints.glob("pt_*legacy*/ckpt.pt"))
    seeds += [text for text in map(pickled, zip_seeds(checkpoints)) if text]
    value = {"a": [1, 2.5, None, True, "é", b"\0\xff", (1, 2, 3, 4), {5}, 1 << 70, -(1 << 40)], "b": bytearray(b"x")}
    value["again"] = value["a"]
    return seeds + [pickle.dumps(value, protocol) for protocol in (2, 3, 4, 5)]


def torch_file_seeds(checkpoints):
    files = small(checkpoints.glob("pt_*/ckpt.pt")) + small(checkpoints.glob("full_*/ckpt.pt"))
    return files + [without_checksums(data) for data in files if data.startswith(b"PK")]


def safetensors_seeds(checkpoints):
    return small(checkpoints.glob("*/model*.safetensors")) + small(checkpoints.glob("dcp_*/ckpt/*.safetensors"))


def gguf_seeds(_):
    """Returns files after their first four bytes."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    array = lambda kind, count, data: struct.pack("<IIQ", 9, kind, count) + data
    numbers = [(0, "B"), (1, "b"), (2, "H"), (3, "h"), (4, "I"), (5, "i"), (6, "f"), (7, "?"), (10, "Q"), (11, "q"), (12, "d")]
    entries = [text(f"n.{kind}") + struct.pack("<I" + code, kind, 1) for kind, code in numbers]
    entries += [text("general.name") + struct.pack("<I", 8) + text("tiny"), text("tokens") + array(8, 2, text("a") + text("▁b")),
                text("scores") + array(6, 9, bytes(36)), text("nested") + array(9, 1, struct.pack("<IQ", 5, 2) + bytes(8)),
                text("general.alignment") + struct.pack("<II", 4, 32)]
    tensors = [text("a") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0), text("b") + struct.pack("<IQIQ", 1, 5, 30, 96), text("c") + struct.pack("<IIQ", 0, 0, 128)]
    seeds = []
    for kept, described in ((entries, tensors), (entries[-5:-4], tensors[:1]), ([], [])):
        head = struct.pack("<IQQ", 3, len(described), len(kept)) + b"".join(kept + described)
        seeds.append(head + bytes(-(len(head) + 4) % 32 + 160))
    return seeds


def dcp_seeds(checkpoints):
    seeds = []
    for directory in sorted(checkpoints.glob("*/ckpt")):
        files = [(number, directory / name) for number, name in enumerate(DCP_NAMES) if (directory / name).is_file()]
        index = [(number, path.read_bytes()) for number, path in files if "metadata" in path.name]
        data = [(number, without_checksums(path.read_bytes())) for number, path in files if "metadata" not in path.name]
        seeds += [text_seeds.packed(index), text_seeds.packed(index + data)]
    return [seed for seed in seeds if 0 < len(seed) <= LARGEST_FOLDER]


def door_seeds(checkpoints, folders, names):
    """Returns folders of tests/fixtures/doors: each whole, and without its optimizer."""
    with tarfile.open(checkpoints.parent / "doors" / "doors.tar.xz") as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    seeds = []
    for folder in folders:
        found = [file_of(number, files[f"doors/{folder}/{name}"]) for number, name in enumerate(names) if f"doors/{folder}/{name}" in files]
        seeds += [text_seeds.packed(found), text_seeds.packed([item for item in found if "optim" not in names[item[0] % 128]])]
    return [seed for seed in seeds if 0 < len(seed) <= LARGEST]


def deepspeed_seeds(checkpoints):
    return door_seeds(checkpoints, ("small/zero0", "small/zero2", "small/zero3", "small/universal"), DEEPSPEED_NAMES)


def per_rank_seeds(checkpoints):
    return door_seeds(checkpoints, ("small/dtensor", "small/sharded"), RANK_NAMES)


def trainer_seeds(checkpoints):
    seeds = door_seeds(checkpoints, ("small/trainer", "small/accelerate", "small/lightning", "small/lightning_dcp", "small/composer"), TRAINER_NAMES)
    for folder in sorted((checkpoints.parent / "trainers").glob("*/ckpt")):
        files = {path.relative_to(folder).as_posix().removeprefix("checkpoint-4/").replace("optimizer.pt", "optimizer.bin"): path
                 for path in folder.rglob("*") if path.is_file()}
        seeds.append(text_seeds.packed([file_of(number, files[name].read_bytes()) for number, name in enumerate(TRAINER_NAMES) if name in files]))
    return [seed for seed in seeds if 0 < len(seed) <= LARGEST_FOLDER]


def megatron_seeds(checkpoints):
    return door_seeds(checkpoints, ("small/megatron", "small/megatron19"), MEGATRON_NAMES)


def hf_seeds(checkpoints):
    def header(tensors, size):
        text = json.dumps(tensors).encode()
        return struct.pack("<Q", len(text)) + text + bytes(size)

    one = header({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, 24)
    two = header({"b": {"dtype": "BF16", "shape": [], "data_offsets": [0, 2]}, "__metadata__": {"format": "pt"}}, 2)
    index = json.dumps({"metadata": {"total_size": 26}, "weight_map": {"a": HF_NAMES[1], "b": HF_NAMES[2]}}).encode()
    sharded = json.dumps({"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [1, 0]}}), "DCP_VERSION": "1.0", "format": "pt"})
    shard = header({"a": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]}, "__metadata__": json.loads(sharded)}, 12)
    return [text_seeds.packed([(0, index), (1, one), (2, two)]), text_seeds.packed([(1, one), (2, two)]), text_seeds.packed([(3, one)]), text_seeds.packed([(4, shard)])]


MAKERS = {"pickle": pickle_seeds, "zip": zip_seeds, "torch_blob": zip_seeds, "torch_file": torch_file_seeds,
          "safetensors": safetensors_seeds, "gguf": gguf_seeds, "dcp": dcp_seeds, "deepspeed": deepspeed_seeds, "per_rank": per_rank_seeds, "trainer": trainer_seeds,
          "megatron": megatron_seeds, "hf_index": hf_seeds, **text_seeds.MAKERS}


def write(target, folder):
    """Writes the seeds of a target as files 000, 001, ... Returns their number."""
    checkpoints = pathlib.Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
    former = sorted((pathlib.Path(__file__).resolve().parent / "former" / target).glob("*"))  # what once crashed a reader
    seeds = [*MAKERS[target](checkpoints), *(path.read_bytes() for path in former)]
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(dict.fromkeys(seeds)):
        (folder / f"{number:03}").write_bytes(data)
    return len(seeds)
