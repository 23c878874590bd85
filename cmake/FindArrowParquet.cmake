# Finds Apache Arrow's C++ Parquet library: headers, libarrow and libparquet from the same installation.
#
# Searches, in this order, ArrowParquet_ROOT, CMAKE_PREFIX_PATH (so a site's Arrow takes precedence), the pyarrow wheel
# in the project's own .deps/venv, whose libraries have only versioned names, and the system.
# Defines the target fsdp::parquet and ArrowParquet_LIBRARY_DIR.
include(FindPackageHandleStandardArgs)

set(_arrow_hints ${ArrowParquet_ROOT} $ENV{ArrowParquet_ROOT})
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _arrow_hints "${_prefix}")
endforeach()
string(REPLACE ":" ";" _arrow_prefixes "$ENV{CMAKE_PREFIX_PATH}")
list(APPEND _arrow_hints ${_arrow_prefixes})
file(GLOB _arrow_wheels "${FSDP_VENV}/lib/python3*/site-packages/pyarrow")
list(APPEND _arrow_hints ${_arrow_wheels})

find_path(ArrowParquet_INCLUDE_DIR parquet/column_reader.h HINTS ${_arrow_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(ArrowParquet_INCLUDE_DIR parquet/column_reader.h)
if(ArrowParquet_INCLUDE_DIR)
  # Prefer the libraries of the installation that the headers come from.
  get_filename_component(_arrow_root "${ArrowParquet_INCLUDE_DIR}" DIRECTORY)
  foreach(_library arrow parquet)
    file(GLOB _versioned RELATIVE "${_arrow_root}" "${_arrow_root}/lib${_library}.so.*")
    find_library(ArrowParquet_${_library}_LIBRARY NAMES ${_library} ${_versioned} NAMES_PER_DIR HINTS "${_arrow_root}"
      PATH_SUFFIXES lib lib64)
  endforeach()
endif()
find_package_handle_standard_args(ArrowParquet
  REQUIRED_VARS ArrowParquet_parquet_LIBRARY ArrowParquet_arrow_LIBRARY ArrowParquet_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, or set ArrowParquet_ROOT to an installation of Arrow's C++ libraries")

if(ArrowParquet_FOUND AND NOT TARGET fsdp::parquet)
  get_filename_component(ArrowParquet_LIBRARY_DIR "${ArrowParquet_parquet_LIBRARY}" DIRECTORY)
  add_library(fsdp::parquet INTERFACE IMPORTED)
  target_include_directories(fsdp::parquet SYSTEM INTERFACE "${ArrowParquet_INCLUDE_DIR}")
  target_link_libraries(fsdp::parquet INTERFACE "${ArrowParquet_parquet_LIBRARY}" "${ArrowParquet_arrow_LIBRARY}")
endif()
