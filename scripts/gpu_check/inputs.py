"""Writes model directories with random weights and token files, using only PyTorch: the machine may lack h5py,
safetensors and numpy."""

import ctypes
import json
import struct

import torch

import models

SHAPE, ROWS = "shape.json", "rows.pt"  # for the PyTorch reference; fsdp-finetune reads the other files
LONG_ROWS = 64


def raw_bytes(tensor):
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def make(folder, shape, device):
    """Writes config.json, model.safetensors (bf16), rows.h5 and the two files above. If the shape has `long`, also long.h5, rows of so many
    tokens, and documents.h5, of which one or a part fills such a row."""
    folder.mkdir(parents=True)
    (folder / SHAPE).write_text(json.dumps(shape), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(models.config_of(shape)), encoding="utf-8")
    numbers = torch.Generator(device=device).manual_seed(1)
    write_safetensors(folder / "model.safetensors", models.build(shape).named_parameters(), numbers)
    ids = random_ids(shape, shape["rows"], shape["length"] + 1)
    torch.save(ids, folder / ROWS)
    write_datasets(folder / "rows.h5", {"input_ids": ids})
    if "long" in shape:
        ids = random_ids(shape, LONG_ROWS, shape["long"] + 1)
        write_datasets(folder / "long.h5", {"input_ids": ids})
        # Each is up to 3 % shorter than a row, so that two never share one and the end of a row is padding.
        sizes = torch.tensor([ids.shape[1] - 37 * i % (ids.shape[1] // 33) for i in range(len(ids))])
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)))
        write_datasets(folder / "documents.h5", {"offsets": offsets, "tokens": torch.cat([row[:size] for row, size in zip(ids, sizes.tolist())])})


def random_ids(shape, rows, length):
    """Returns [rows, length] of ids that fit into uint16."""
    return torch.randint(0, min(shape["vocab"], 2**16), (rows, length), generator=torch.Generator().manual_seed(2))


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


def write_datasets(path, datasets):
    """Writes a token file: at most eight datasets, `offsets` as int64 and others as uint16, contiguous, in HDF5's first format
    (superblock 0, groups as symbol tables)."""
    undefined, names = b"\xff" * 8, sorted(datasets)
    arrays = [datasets[name] if name == "offsets" else datasets[name].to(torch.int32).to(torch.int16) for name in names]  # the low half: uint16
    arrays = [array.contiguous() for array in arrays]
    heap_bytes = 8 + 16 * len(names)
    root, tree, heap, heap_data = 96, 136, 680, 712
    symbols = heap_data + heap_bytes
    headers = [symbols + 328 + 152 * i for i in range(len(names) + 1)]  # the last: where data begins
    data = [headers[-1]]
    for array in arrays:
        data.append(data[-1] + array.nbytes + -array.nbytes % 8)

    def message(kind, body):
        body += b"\0" * (-len(body) % 8)
        return struct.pack("<HHB3x", kind, len(body), 0) + body

    def object_header(*messages):
        body = b"".join(messages)
        return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body

    def entry(name_at, header_at, cached, scratch):
        return struct.pack("<QQII", name_at, header_at, cached, 0) + scratch.ljust(16, b"\0")

    def dataset(array, at):
        size, signed = array.element_size(), 8 if array.element_size() == 8 else 0
        return object_header(
            message(0x01, struct.pack(f"<BBB5x{array.dim()}Q", 1, array.dim(), 0, *array.shape)),  # dataspace: the shape
            message(0x03, struct.pack("<4BIHH", 0x10, signed, 0, 0, size, 0, 8 * size)),  # a little-endian integer
            message(0x05, struct.pack("<4B", 2, 2, 0, 0)),  # no fill value
            message(0x08, struct.pack("<BBQQ", 3, 1, at, array.nbytes)))  # layout: contiguous, at this offset

    where = struct.pack("<QQ", tree, heap)
    entries = [entry(8 + 16 * i, headers[i], 0, b"") for i in range(len(names))]
    pieces = {
        0: b"\x89HDF\r\n\x1a\n" + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0) + struct.pack("<Q", 0) + undefined
           + struct.pack("<Q", data[-1]) + undefined + entry(0, root, 1, where),
        root: object_header(message(0x11, where)),
        tree: b"TREE" + struct.pack("<BBH", 0, 0, 1) + undefined * 2 + struct.pack("<QQQ", 0, symbols, 16 * len(names) - 8),
        heap: b"HEAP" + struct.pack("<B3xQQQ", 0, heap_bytes, 1, heap_data),
        heap_data: b"\0" * 8 + b"".join(name.encode().ljust(16, b"\0") for name in names),
        symbols: b"SNOD" + struct.pack("<BxH", 1, len(names)) + b"".join(entries),
        **{header: dataset(array, at) for header, array, at in zip(headers, arrays, data)}}
    with open(path, "wb") as file:
        for at, piece in pieces.items():
            file.write(piece)
            following = min(other for other in [*pieces, data[0]] if other > at)
            file.write(b"\0" * (following - at - len(piece)))
        for array in arrays:
            file.write(raw_bytes(array))
            file.write(b"\0" * (-array.nbytes % 8))
