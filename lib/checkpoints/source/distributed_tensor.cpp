#include "lib/checkpoints/source/distributed_tensor.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "lib/base/types/error.hpp"
#include "lib/base/types/index.hpp"

namespace fsdp {
namespace {

constexpr std::size_t kLargestMesh = 1u << 20;  // of a mesh

/// The class of a wrapped tensor; null for any other value.
const PickleGlobal* wrapped_class(const PickleValue& value) {
  const auto* object = value.object_of("torch._tensor", "_rebuild_from_type_v2");
  if (object == nullptr || object->args->tuple()->items.size() != 4) return nullptr;
  const auto& args = object->args->tuple()->items;
  if (!args[0]->is_global("torch._utils", "_rebuild_wrapper_subclass")) return nullptr;
  return args[1]->global();
}

bool is_dtensor(const PickleGlobal& type) {
  return type.name == "DTensor" &&
         (type.module == "torch.distributed.tensor" || type.module == "torch.distributed._tensor.api" ||
          type.module == "torch.distributed._tensor" || type.module == "torch.distributed.tensor._api");
}
bool is_sharded_tensor(const PickleGlobal& type) {
  return type.is("torch.distributed._shard.sharded_tensor.api", "ShardedTensor");
}

PickleNode within(const PickleNode& node, PickleRef value, const std::string& part) {
  return {value, node.file, node.key + "<" + part + ">"};
}

/// The attributes of an object: its state is a dict, or (None or a dict, dict of slots).
PickleNode attributes(const PickleNode& node, std::string_view name) {
  const auto* object = node.value->object();
  const auto* type = object == nullptr ? nullptr : object->callable->global();
  if (type == nullptr || type->name != name)
    node.fail("should be a " + std::string(name) + " and is " + describe(*node.value));
  const auto* state = object->state;
  if (state != nullptr && state->tuple() != nullptr && state->tuple()->items.size() == 2)
    state = state->tuple()->items[1];
  if (state == nullptr || pickled_mapping(*state) == nullptr) node.fail("has no attributes");
  return within(node, state, std::string(name));
}

/// The attribute under its name of torch 2.15 or 2.6.
PickleNode either(const PickleNode& node, std::string_view name, std::string_view older) {
  auto found = node.find(name);
  return found ? *found : node.at(older);
}

/// Sizes of the axes of a mesh, and the place of the rank on each axis.
struct Mesh {
  std::vector<std::size_t> sizes, coordinate;
};

/// Sets the coordinate of number `place` of a row-major list of ranks. \pre no axis has size 0
void set_coordinate(Mesh& mesh, std::size_t place) {
  mesh.coordinate.resize(mesh.sizes.size());
  for (std::size_t axis = mesh.sizes.size(); axis-- > 0; place /= mesh.sizes[axis])
    mesh.coordinate[axis] = place % mesh.sizes[axis];
}

/// The numbers of an int or a nested tuple of ints.
void flatten_numbers(const PickleNode& node, std::vector<std::size_t>& numbers) {
  if (node.value->integer() != nullptr) {
    numbers.push_back(node.count());
    return;
  }
  for (const auto& item : node.items()) flatten_numbers(item, numbers);
}

/// An axis of a layout: number `place` of a row-major list of ranks lies at (place / stride) % size. An axis of several
/// sizes counts the last fastest.
void add_axis(const PickleNode& node, const std::vector<std::size_t>& sizes, const std::vector<std::size_t>& strides,
              std::size_t place, Mesh& mesh) {
  if (sizes.size() != strides.size()) node.fail("has more sizes than strides, or fewer");
  std::size_t size = 1, coordinate = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 || sizes[i] > kLargestMesh || size * sizes[i] > kLargestMesh) node.fail("is no axis of a mesh");
    size *= sizes[i];
    const auto own = sizes[i] == 1 ? 0 : place / std::max<std::size_t>(strides[i], 1) % sizes[i];
    coordinate = coordinate * sizes[i] + own;
  }
  mesh.sizes.push_back(size);
  mesh.coordinate.push_back(coordinate);
}

/// torch 2.8 to 2.15: the axes of the mesh as sizes and strides within the list of all ranks. A part of a mesh has the
/// list of the whole.
Mesh mesh_of_layout(const PickleNode& layout, std::size_t place) {
  Mesh mesh;
  const auto state = attributes(layout, "_MeshLayout");
  const auto numbers = [](const PickleNode& node) {
    std::vector<std::size_t> flat;
    flatten_numbers(node, flat);
    return flat;
  };
  if (const auto axes = state.find("axes")) {
    for (const auto& axis : axes->items()) {
      const auto parts = attributes(axis, "_FlatLayout");
      add_axis(axis, numbers(parts.at("shape")), numbers(parts.at("stride")), place, mesh);
    }
    return mesh;
  }
  const auto shape = state.at("shape"), stride = state.at("stride");
  if (shape.value->integer() != nullptr) {
    add_axis(layout, {shape.count()}, {stride.count()}, place, mesh);
    return mesh;
  }
  const auto sizes = shape.items(), strides = stride.items();
  if (sizes.size() != strides.size()) layout.fail("has more sizes than strides, or fewer");
  for (std::size_t i = 0; i < sizes.size(); ++i) add_axis(layout, numbers(sizes[i]), numbers(strides[i]), place, mesh);
  return mesh;
}

std::optional<TensorView> plain_tensor(const PickleNode& node) { return tensor_view(*node.value, node.file); }

Mesh mesh_of(const PickleNode& node, std::size_t rank, const ReadIntegers& read) {
  const auto state = attributes(node, "DeviceMesh");
  const auto numbers = either(state, "_rank_map", "mesh");
  const auto view = plain_tensor(numbers);
  if (!view || !view->is_contiguous() || static_cast<std::size_t>(num_elements(view->sizes)) > kLargestMesh)
    numbers.fail("is no list of ranks");
  const auto ranks = read(*view);
  const auto found = std::ranges::find(ranks, static_cast<std::int64_t>(rank));
  const auto own = state.find("_rank");
  if (found == ranks.end() || (own && own->value->integer() != nullptr && own->count() != rank))
    node.fail("is not that of rank " + std::to_string(rank) +
              ", whose number the file's name has: was the file renamed?");
  const auto place = to_index(found - ranks.begin());
  Mesh mesh;
  if (const auto layout = state.find("_layout")) {
    mesh = mesh_of_layout(*layout, place);
  } else {
    for (const auto size : view->sizes) mesh.sizes.push_back(static_cast<std::size_t>(size));
    set_coordinate(mesh, place);
  }
  const auto recorded = state.find("_coordinate_on_dim");
  if (!recorded || recorded->value->is_none()) return mesh;
  const auto items = recorded->items();
  if (items.size() != mesh.coordinate.size() ||
      !std::ranges::equal(items, mesh.coordinate, {}, [](const PickleNode& item) { return item.count(); }))
    recorded->fail("is not the place of rank " + std::to_string(rank) + ": was the file renamed?");
  return mesh;
}

struct Placement {
  bool is_shard = false;
  std::size_t dim = 0;
  std::size_t split_factor = 0;  ///< of a strided shard: cut by this many ranks of later axes before
};

Placement placement_of(const PickleNode& node, std::size_t num_dims) {
  const auto* object = node.value->object();
  const auto* type = object == nullptr ? nullptr : object->callable->global();
  if (type == nullptr) node.fail("should be a placement and is " + describe(*node.value));
  if (type->name == "Replicate") return {};
  if (type->name != "Shard" && type->name != "_StridedShard")
    node.fail("has the placement " + std::string(type->name.substr(0, 100)) +
              ", which is not read: only Shard and Replicate give elements of the tensor (a partial sum does not)");
  const auto state = attributes(node, type->name);
  Placement placement{.is_shard = true, .dim = state.at("dim").count(), .split_factor = 0};
  if (placement.dim >= num_dims) node.fail("is sharded along a dim that the tensor does not have");
  if (type->name == "_StridedShard") placement.split_factor = state.at("split_factor").count();
  return placement;
}

/// The axes of the mesh in the order in which they cut. A strided shard is cut after the later axes of its dim.
std::vector<std::size_t> cutting_order(const PickleNode& spec, const std::vector<Placement>& placements,
                                       const std::vector<std::size_t>& sizes) {
  std::vector<std::size_t> order;
  if (const auto listed = spec.find("shard_order"); listed && listed->value->tuple() != nullptr) {
    for (const auto& entry : listed->items()) {
      const auto* object = entry.value->object();
      if (object == nullptr || object->args->tuple()->items.size() != 2) entry.fail("is no order of shards");
      for (const auto& axis : within(entry, object->args->tuple()->items[1], "mesh_dims").items()) {
        const auto number = axis.count();
        if (number >= placements.size() || !placements[number].is_shard) axis.fail("is no axis that shards");
        if (std::ranges::find(order, number) != order.end()) axis.fail("is listed twice");
        order.push_back(number);
      }
    }
  }
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    if (!placements[axis].is_shard || std::ranges::find(order, axis) != order.end()) continue;
    if (placements[axis].split_factor == 0) continue;
    std::size_t factor = 1;
    for (std::size_t later = axis + 1; later < placements.size(); ++later) {
      if (!placements[later].is_shard || placements[later].dim != placements[axis].dim) continue;
      factor *= sizes[later];
      if (std::ranges::find(order, later) == order.end()) order.push_back(later);
    }
    if (factor != placements[axis].split_factor) spec.fail("has a strided shard of an unknown order");
    order.push_back(axis);
  }
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].is_shard && std::ranges::find(order, axis) == order.end()) order.push_back(axis);
  return order;
}

/// The block of the rank at `mesh.coordinate`. \pre as many placements as axes
Block block_on_mesh(const PickleNode& spec, const Shape& shape, const std::vector<Placement>& placements,
                    const Mesh& mesh) {
  Block block{Shape(shape.size(), 0), shape};
  for (const auto axis : cutting_order(spec, placements, mesh.sizes)) {
    const auto dim = placements[axis].dim;
    const std::int64_t ranks = mesh.sizes[axis];
    const auto whole = block.sizes[dim];
    const auto each = whole / ranks + (whole % ranks != 0 ? 1 : 0);
    const std::int64_t before = mesh.coordinate[axis];
    const auto begin = before > 0 && each > whole / before ? whole : each * before;
    block.offsets[dim] += begin;
    block.sizes[dim] = std::min(each, whole - begin);
  }
  return block;
}

DistributedTensor from_dtensor(const PickleNode& node, const PickleNode& state, const Shape& shape, std::size_t rank,
                               const ReadIntegers& read) {
  const auto local = state.at("_local_tensor");
  auto view = plain_tensor(local);
  if (!view) local.fail("should be a tensor and is " + describe(*local.value));
  const auto spec = attributes(state.at("_spec"), "DTensorSpec");
  const auto mesh = mesh_of(spec.at("mesh"), rank, read);
  std::vector<Placement> placements;
  for (const auto& item : spec.at("placements").items()) placements.push_back(placement_of(item, shape.size()));
  if (placements.size() != mesh.sizes.size()) node.fail("has more placements than its mesh has axes, or fewer");
  auto block = block_on_mesh(spec, shape, placements, mesh);
  if (view->sizes != block.sizes) {
    const bool both_empty = num_elements(view->sizes) == 0 && num_elements(block.sizes) == 0;
    if (!both_empty)
      node.fail("has a piece whose shape is not the one that mesh and placements give rank " + std::to_string(rank));
  }
  return {.dtype = view->dtype, .shape = shape, .views = {std::move(*view)}, .blocks = {std::move(block)}};
}

DistributedTensor from_sharded_tensor(const PickleNode& node, const PickleNode& state, const Shape& shape) {
  DistributedTensor found{.dtype = DType::f32, .shape = shape, .views = {}, .blocks = {}};
  const auto parts = state.items();
  if (parts.size() < 2) node.fail("has an unexpected state");
  const auto metadata = attributes(parts[1], "ShardedTensorMetadata");
  if (metadata.at("size").shape() != shape) node.fail("has two sizes");
  for (const auto& item : parts[0].items()) {
    const auto shard = attributes(item, "Shard");
    const auto place = attributes(shard.at("metadata"), "ShardMetadata");
    const auto tensor = shard.at("tensor");
    auto view = plain_tensor(tensor);
    if (!view) tensor.fail("should be a tensor and is " + describe(*tensor.value));
    Block block{place.at("shard_offsets").shape(), place.at("shard_sizes").shape()};
    if (!block_is_inside(block, shape) || block.sizes != view->sizes) item.fail("does not fit its place in the tensor");
    if (!found.views.empty() && found.dtype != view->dtype) item.fail("is of another type than the piece before");
    found.dtype = view->dtype;
    found.views.push_back(std::move(*view));
    found.blocks.push_back(std::move(block));
  }
  return found;
}

Placement described_placement(const PickleNode& node, std::size_t num_dims) {
  const auto type = node.at("type").text();
  if (type == "Replicate") return {};
  if (type != "Shard")
    node.fail("is the placement " + type.substr(0, 100) + ", which is not read: only Shard and Replicate are");
  const Placement placement{.is_shard = true, .dim = node.at("dim").count(), .split_factor = 0};
  if (placement.dim >= num_dims) node.fail("is a shard along a dim that the tensor does not have");
  return placement;
}

DType dtype_of_global(const PickleNode& node, const PickleValue& value) {
  if (value.global() == nullptr || value.global()->module != "torch") node.fail("has no element type");
  return dtype_from_torch(value.global()->name);
}

}  // namespace

bool is_distributed_tensor(const PickleValue& value) {
  const auto* type = wrapped_class(value);
  return type != nullptr && (is_dtensor(*type) || is_sharded_tensor(*type));
}

DistributedTensor distributed_tensor(const PickleNode& node, std::size_t rank, const ReadIntegers& read) {
  const auto& args = node.value->object()->args->tuple()->items;
  const auto* rebuild = args[2]->tuple();
  if (rebuild == nullptr || rebuild->items.size() < 3) node.fail("has unexpected arguments");
  const auto dtype = dtype_of_global(node, *rebuild->items[1]);
  const auto shape = within(node, rebuild->items[2], "size").shape();
  const auto* state = args[3];
  DistributedTensor found;
  if (is_sharded_tensor(*args[1]->global())) {
    found = from_sharded_tensor(node, within(node, state, "state"), shape);
    if (found.views.empty()) found.dtype = dtype;
  } else {
    if (state->tuple() != nullptr && state->tuple()->items.size() == 2) state = state->tuple()->items[1];
    found = from_dtensor(node, within(node, state, "state"), shape, rank, read);
  }
  if (found.dtype != dtype) node.fail("has a piece of another type");
  return found;
}

DescribedTensor described_tensor(const PickleNode& data) {
  DescribedTensor tensor;
  tensor.shape = data.at("global_shape").shape();
  const auto dtype = data.at("dtype").text();
  if (!dtype.starts_with("torch.")) data.at("dtype").fail("is no element type");
  tensor.dtype = dtype_from_torch(dtype.substr(std::string_view("torch.").size()));
  const auto spec = data.at("mesh_spec");
  std::vector<std::size_t> ranks;
  Mesh mesh;
  flatten_numbers(spec.at("mesh_data"), ranks);
  flatten_numbers(spec.at("mesh_shape"), mesh.sizes);
  std::size_t size = 1;
  for (const auto axis : mesh.sizes) {
    if (axis == 0 || axis > kLargestMesh || size * axis > kLargestMesh) spec.fail("is no mesh");
    size *= axis;
  }
  if (size != ranks.size()) spec.fail("has more ranks than places, or fewer");
  std::vector<Placement> placements;
  for (const auto& item : data.at("placements").items())
    placements.push_back(described_placement(item, tensor.shape.size()));
  if (placements.size() != mesh.sizes.size()) data.fail("has more placements than its mesh has axes, or fewer");
  for (std::size_t place = 0; place < ranks.size(); ++place) {
    set_coordinate(mesh, place);
    tensor.blocks.emplace(ranks[place], block_on_mesh(data, tensor.shape, placements, mesh));
  }
  return tensor;
}

}  // namespace fsdp
