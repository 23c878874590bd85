"""Writes model directories with random weights and token files, using only PyTorch: the machine may lack h5py,
safetensors and numpy."""

import ctypes
import json
import struct

import torch

import models

SHAPE, ROWS = "shape.json", "rows.pt"  # for the PyTorch reference; fsdp-finetune reads the other files


def raw_bytes(tensor):
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def make(folder, shape, device):
    """Writes config.json, model.safetensors (bf16), rows.h5 and the two files above."""
    folder.mkdir(parents=True)
    (folder / SHAPE).write_text(json.dumps(shape), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(models.config_of(shape)), encoding="utf-8")
    numbers = torch.Generator(device=device).manual_seed(1)
    write_safetensors(folder / "model.safetensors", models.build(shape).named_parameters(), numbers)
    ids = torch.randint(0, shape["vocab"], (shape["rows"], shape["length"] + 1), generator=torch.Generator().manual_seed(2))
    torch.save(ids, folder / ROWS)
    write_rows(folder / "rows.h5", ids)


def fresh(name, shape, numbers):
    """Returns initial weights: matrices N(0, 0.02), norms one, biases zero."""
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    return torch.empty(shape, device=numbers.device).normal_(0, 0.02, generator=numbers)


def write_safetensors(path, parameters, numbers):
    parameters, header, end = list(parameters), {"__metadata__": {"format": "pt"}}, 0
    for name, parameter in parameters:
        begin, end = end, end + 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, parameter in parameters:
            tensor = fresh(name, parameter.shape, numbers).to(torch.bfloat16).cpu().contiguous()
            file.write(raw_bytes(tensor))


def read_safetensors(path):
    """Returns {name: tensor} over the mapped file."""
    content = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__")
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        found[name] = content[begin:end].view(torch.bfloat16).view(entry["shape"])
    return found


def write_rows(path, ids):
    """Writes a token file: `input_ids` as uint16, contiguous, in HDF5's first format (superblock 0, groups as symbol tables)."""
    undefined, name = b"\xff" * 8, b"input_ids\0"
    root, tree, heap, heap_data, symbols, dataset, data = 96, 136, 680, 712, 736, 1064, 1216

    def message(kind, body):
        body += b"\0" * (-len(body) % 8)
        return struct.pack("<HHB3x", kind, len(body), 0) + body

    def object_header(*messages):
        body = b"".join(messages)
        return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body

    def entry(name_at, header_at, cached, scratch):
        return struct.pack("<QQII", name_at, header_at, cached, 0) + scratch.ljust(16, b"\0")

    tokens = ids.to(torch.int32).to(torch.int16).contiguous()  # the low half holds the bits of uint16
    where = struct.pack("<QQ", tree, heap)
    end = struct.pack("<Q", data + tokens.nbytes)
    pieces = {
        0: b"\x89HDF\r\n\x1a\n" + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0) + struct.pack("<Q", 0) + undefined
           + end + undefined + entry(0, root, 1, where),
        root: object_header(message(0x11, where)),
        tree: b"TREE" + struct.pack("<BBH", 0, 0, 1) + undefined * 2 + struct.pack("<QQQ", 0, symbols, 8),
        heap: b"HEAP" + struct.pack("<B3xQQQ", 0, 24, 1, heap_data),
        heap_data: b"\0" * 8 + name.ljust(16, b"\0"),
        symbols: b"SNOD" + struct.pack("<BxH", 1, 1) + entry(8, dataset, 0, b""),
        dataset: object_header(
            message(0x01, struct.pack("<BBB5xQQ", 1, 2, 0, *ids.shape)),  # dataspace: the shape
            message(0x03, struct.pack("<4BIHH", 0x10, 0, 0, 0, 2, 0, 16)),  # little-endian, unsigned, 16 bits
            message(0x05, struct.pack("<4B", 2, 2, 0, 0)),  # no fill value
            message(0x08, struct.pack("<BBQQ", 3, 1, data, tokens.nbytes))),  # layout: contiguous, at this offset
    }
    with open(path, "wb") as file:
        for at, piece in pieces.items():
            file.write(piece)
            following = min(other for other in [*pieces, data] if other > at)
            file.write(b"\0" * (following - at - len(piece)))
        file.write(raw_bytes(tokens))
