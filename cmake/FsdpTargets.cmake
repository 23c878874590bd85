# One static library per folder of lib/, with the project's warnings; fsdp_library(name SOURCES... LINKS...).

add_library(fsdp_options INTERFACE)
target_include_directories(fsdp_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(fsdp_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wcast-qual
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms on std::string in GCC 12 (GCC bug 105651)
  $<$<BOOL:${FSDP_WERROR}>:-Werror>)
target_compile_definitions(fsdp_options INTERFACE FMT_HEADER_ONLY FSDP_VERSION="${PROJECT_VERSION}")

# fsdp_library(NAME LINKS target...): sources are all .cpp files of the calling folder (subfolders are not searched).
function(fsdp_library name)
  cmake_parse_arguments(ARG "" "" "LINKS;EXCLUDE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
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
