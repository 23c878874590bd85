# One static library per folder of lib/, with the project's warnings.

add_library(fsdp_options INTERFACE)
target_include_directories(fsdp_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(fsdp_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wcast-qual
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms about std::string in GCC 12 (GCC bug 105651)
  $<$<BOOL:${FSDP_WERROR}>:-Werror>
  # The result does not depend on the build folder, except for RPATHs (docs/install.md).
  $<$<CONFIG:Release>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(FSDP_SANITIZE)
  target_compile_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -O1 -g1
    # False alarms in the instrumented standard library.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
  target_link_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()
target_compile_definitions(fsdp_options INTERFACE FSDP_VERSION="${PROJECT_VERSION}")

# All code must use the same fmt; LibTorch's wheel has headers of another version, which would be found first. fmt is
# linked, because as a header-only library it costs two seconds per file.
find_package(fmt REQUIRED)
get_target_property(fmt_include_dirs fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
find_path(Fmt_INCLUDE_DIR fmt/format.h HINTS ${fmt_include_dirs} NO_CACHE REQUIRED)
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include")
file(CREATE_LINK "${Fmt_INCLUDE_DIR}/fmt" "${PROJECT_BINARY_DIR}/include/fmt" SYMBOLIC)
target_include_directories(fsdp_options SYSTEM INTERFACE "${PROJECT_BINARY_DIR}/include")
target_link_libraries(fsdp_options INTERFACE fmt::fmt)

# fsdp_compile_quickly(TARGET [PUBLIC]): compiles with -O1, which takes about half the time of -O3. For code that waits
# for files, ranks or users instead of computing: options, reports, jobs, tests. Most files are of this kind.
function(fsdp_compile_quickly target)
  set(scope PRIVATE)
  if(ARGN)
    set(scope ${ARGN})
  endif()
  target_compile_options(${target} ${scope} $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# fsdp_header_set(NAME [QUICK] HEADERS header...): a set of precompiled headers for fsdp_precompile(): headers that cost
# seconds per file, compiled once for all files with the same compiler options.
function(fsdp_header_set name)
  cmake_parse_arguments(ARG "QUICK" "" "HEADERS;LINKS" ${ARGN})
  set(source "${PROJECT_BINARY_DIR}/headers/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Nothing but precompiled headers.\n")
  add_library(fsdp_headers_${name} OBJECT "${source}")
  target_link_libraries(fsdp_headers_${name} PRIVATE fsdp_options ${ARG_LINKS})
  target_precompile_headers(fsdp_headers_${name} PRIVATE ${ARG_HEADERS})
  if(ARG_QUICK)
    fsdp_compile_quickly(fsdp_headers_${name})
  endif()
endfunction()
function(fsdp_precompile target name)
  target_precompile_headers(${target} REUSE_FROM fsdp_headers_${name})
endfunction()

# fsdp_compile_quickly_with(TARGET NAME): compiles a program, or a part of one, with the QUICK header set NAME and, to
# match the header set, with -fPIC.
function(fsdp_compile_quickly_with target name)
  fsdp_compile_quickly(${target})
  target_compile_options(${target} PRIVATE -fPIC)
  fsdp_precompile(${target} ${name})
endfunction()

# fsdp_library(NAME [QUICK [COMPUTES file...]] [TORCH] LINKS target... [SUBFOLDERS folder...] [EXCLUDE file...] [ALONE
# file...]): a library of all .cpp files in the calling folder and in SUBFOLDERS. QUICK: compiled as
# fsdp_compile_quickly() does, except for the COMPUTES files. TORCH: the files begin with ATen's tensor header. ALONE:
# files that are not compiled together with others in a unity build, because they define names that another file
# defines, too.
function(fsdp_library name)
  cmake_parse_arguments(ARG "QUICK;TORCH" "" "LINKS;SUBFOLDERS;EXCLUDE;COMPUTES;ALONE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  foreach(folder IN LISTS ARG_SUBFOLDERS)
    file(GLOB more CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
    list(APPEND sources ${more})
  endforeach()
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${excluded}")
  endforeach()
  add_library(fsdp_${name} STATIC ${sources})
  target_link_libraries(fsdp_${name} PUBLIC fsdp_options ${ARG_LINKS})
  set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(ARG_QUICK)
    fsdp_compile_quickly(fsdp_${name})
    set_source_files_properties(${ARG_COMPUTES} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>
      SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if(ARG_TORCH AND ARG_QUICK)
    fsdp_precompile(fsdp_${name} torch_quick)
  elseif(ARG_TORCH)
    fsdp_precompile(fsdp_${name} torch)
  elseif(ARG_QUICK)
    fsdp_precompile(fsdp_${name} quick)
  endif()
endfunction()
