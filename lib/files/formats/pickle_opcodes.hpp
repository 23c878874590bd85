#pragma once
// The opcodes of all pickle protocols (CPython 3.11 Lib/pickle.py), by name for messages and for the reader's switch.
#include <array>
#include <string_view>
#include <utility>

namespace fsdp::detail {

// clang-format off
enum class PickleOp : unsigned char {
  proto = 0x80, frame = 0x95, stop = '.', mark = '(', pop = '0', dup = '2',
  none = 'N', new_true = 0x88, new_false = 0x89,
  bin_int = 'J', bin_int1 = 'K', bin_int2 = 'M', long1 = 0x8a, long4 = 0x8b, bin_float = 'G',
  bin_unicode = 'X', short_bin_unicode = 0x8c, bin_unicode8 = 0x8d,
  bin_bytes = 'B', short_bin_bytes = 'C', bin_bytes8 = 0x8e, byte_array8 = 0x96,
  empty_list = ']', list = 'l', append = 'a', appends = 'e',
  empty_tuple = ')', tuple = 't', tuple1 = 0x85, tuple2 = 0x86, tuple3 = 0x87,
  empty_dict = '}', dict = 'd', set_item = 's', set_items = 'u',
  empty_set = 0x8f, add_items = 0x90, frozen_set = 0x91,
  global = 'c', stack_global = 0x93, reduce = 'R', build = 'b', new_obj = 0x81, new_obj_ex = 0x92, bin_persid = 'Q',
  bin_put = 'q', long_bin_put = 'r', memoize = 0x94, bin_get = 'h', long_bin_get = 'j'
};
// clang-format on

/// Opcodes that exist but that neither torch.save nor DCP writes at protocols 2 to 5.
constexpr std::array<std::pair<unsigned char, std::string_view>, 18> refused_pickle_ops{{
    {'1', "POP_MARK"},
    {'F', "FLOAT"},
    {'I', "INT"},
    {'L', "LONG"},
    {'P', "PERSID"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'g', "GET"},
    {'p', "PUT"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
}};

}  // namespace fsdp::detail
