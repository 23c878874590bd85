# One static library per folder of lib/, with the project's warnings.

add_library(fsdp_options INTERFACE)
target_include_directories(fsdp_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(fsdp_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wcast-qual
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms on std::string in GCC 12 (GCC bug 105651)
  $<$<BOOL:${FSDP_WERROR}>:-Werror>
  # What is built does not tell where: the same bytes in any folder, but for RPATHs (docs/install.md).
  $<$<CONFIG:Release>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(FSDP_SANITIZE)
  target_compile_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -O1 -g1
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)  # false alarms in the standard library once it is instrumented
  target_link_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()
target_compile_definitions(fsdp_options INTERFACE FSDP_VERSION="${PROJECT_VERSION}")

# One fmt for all: LibTorch's wheel brings headers of another one, which would come first. Linked, since header-only it
# costs each file two seconds.
find_package(fmt REQUIRED)
get_target_property(fmt_include_dirs fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
find_path(Fmt_INCLUDE_DIR fmt/format.h HINTS ${fmt_include_dirs} NO_CACHE REQUIRED)
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include")
file(CREATE_LINK "${Fmt_INCLUDE_DIR}/fmt" "${PROJECT_BINARY_DIR}/include/fmt" SYMBOLIC)
target_include_directories(fsdp_options SYSTEM INTERFACE "${PROJECT_BINARY_DIR}/include")
target_link_libraries(fsdp_options INTERFACE fmt::fmt)

# fsdp_compile_quickly(TARGET [PUBLIC]): for code that waits for files, ranks and people, never for itself: options,
# reports, jobs, tests. -O1 takes about half the compiler's time of -O3, and these are most files.
function(fsdp_compile_quickly target)
  set(scope PRIVATE)
  if(ARGN)
    set(scope ${ARGN})
  endif()
  target_compile_options(${target} ${scope} $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# fsdp_header_set(NAME [QUICK] HEADERS header...): what fsdp_precompile() takes: headers that cost each file seconds,
# compiled once for all that is compiled alike.
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

# fsdp_compile_quickly_with(TARGET NAME): a program, or part of one, as a QUICK set of headers is compiled: as a library.
function(fsdp_compile_quickly_with target name)
  fsdp_compile_quickly(${target})
  target_compile_options(${target} PRIVATE -fPIC)
  fsdp_precompile(${target} ${name})
endfunction()

# fsdp_library(NAME [QUICK [COMPUTES file...]] [TORCH] LINKS target... [SUBFOLDERS folder...] [EXCLUDE file...]
# [ALONE file...]): sources are all .cpp files of the calling folder and of the subfolders that are named. QUICK: as
# fsdp_compile_quickly() says, but for the files that compute. TORCH: its files begin with ATen's tensor header. ALONE:
# files with names of their own that another file has too, in a build that compiles several files as one.
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
