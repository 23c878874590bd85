# One static library per folder of lib/, with the project's warnings.

add_library(fsdp_options INTERFACE)
target_include_directories(fsdp_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(fsdp_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wcast-qual
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms on std::string in GCC 12 (GCC bug 105651)
  $<$<BOOL:${FSDP_WERROR}>:-Werror>)
if(FSDP_SANITIZE)
  target_compile_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -O1 -g1)
  target_link_options(fsdp_options INTERFACE -fsanitize=${FSDP_SANITIZE})
endif()
target_compile_definitions(fsdp_options INTERFACE FMT_HEADER_ONLY FSDP_VERSION="${PROJECT_VERSION}")

# fsdp_compile_quickly(TARGET [PUBLIC]): for code that waits for files, ranks and people, never for itself: options,
# reports, jobs, tests. -O1 takes about half the compiler's time of -O3, and these are half of all files.
function(fsdp_compile_quickly target)
  set(scope PRIVATE)
  if(ARGN)
    set(scope ${ARGN})
  endif()
  target_compile_options(${target} ${scope} $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# fsdp_compile_quickly_but(TARGET file...): all of a folder but the files that do compute. Called by the folder.
function(fsdp_compile_quickly_but target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME)
    if(NOT name IN_LIST ARGN)
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
    endif()
  endforeach()
endfunction()

# fsdp_precompile_torch(TARGET [FROM TARGET]): ATen's tensor header costs each file five seconds.
function(fsdp_precompile_torch target)
  if(ARGN)
    list(GET ARGN 1 from)
    target_precompile_headers(${target} REUSE_FROM ${from})
  else()
    target_precompile_headers(${target} PRIVATE <ATen/core/Tensor.h> <fmt/format.h>)
  endif()
endfunction()

# fsdp_library(NAME LINKS target... [SUBFOLDERS folder...] [EXCLUDE file...]): sources are all .cpp files of the calling
# folder and of the subfolders that are named.
function(fsdp_library name)
  cmake_parse_arguments(ARG "" "" "LINKS;SUBFOLDERS;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  foreach(folder IN LISTS ARG_SUBFOLDERS)
    file(GLOB more CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
    list(APPEND sources ${more})
  endforeach()
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${excluded}")
  endforeach()
  if(sources)
    add_library(fsdp_${name} STATIC ${sources})
    target_link_libraries(fsdp_${name} PUBLIC fsdp_options ${ARG_LINKS})
  else()
    add_library(fsdp_${name} INTERFACE)
    target_link_libraries(fsdp_${name} INTERFACE fsdp_options ${ARG_LINKS})
  endif()
endfunction()
