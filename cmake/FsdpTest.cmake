# fsdp_unit_test(FOLDER [TORCH] [LONG] LINKS target...): one doctest program from tests/unit/FOLDER/*_test.cpp. NAME is
#   FOLDER with _ for /: the test is unit.NAME, its program unit_NAME. TORCH: the files begin with ATen's headers, which are precompiled once for all such programs.
# fsdp_add_test(NAME COMMAND command... LABELS label... [TIMEOUT seconds] [PROCESSORS n] [LOCK name] [SERIAL] [LONG]):
#   any command as a ctest test. Exit code 77 means skipped; the output states the reason. Tests with the same LOCK never
#   run at the same time; a SERIAL test runs alone. A LONG test has a whole product (all combinations, a hundred kills, a
#   minute of fuzzing), of which it tries a few: long.NAME tries all (FSDP_ALL=1) where scripts/test has --long.
find_package(doctest REQUIRED)
find_program(FSDP_PYTHON NAMES python3 HINTS "${PROJECT_SOURCE_DIR}/.deps/venv/bin" NO_DEFAULT_PATH)
find_program(FSDP_PYTHON NAMES python3 REQUIRED)
find_program(FSDP_MPIEXEC NAMES mpiexec HINTS "${PROJECT_SOURCE_DIR}/.deps/venv/bin" NO_DEFAULT_PATH)
find_program(FSDP_MPIEXEC NAMES mpiexec REQUIRED)

# Directory of the programs that tests start. When cross-compiling, it holds scripts that start the programs in
# emulation.
set(FSDP_BIN_DIR "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
if(CMAKE_CROSSCOMPILING_EMULATOR)
  set(FSDP_BIN_DIR "${PROJECT_BINARY_DIR}/emulated")
  list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
  get_property(programs GLOBAL PROPERTY FSDP_PROGRAMS)
  foreach(program IN LISTS programs)
    file(GENERATE OUTPUT "${FSDP_BIN_DIR}/${program}" CONTENT "#!/bin/sh\nexec ${emulator} '$<TARGET_FILE:${program}>' \"$@\"\n"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endforeach()
endif()

add_library(fsdp_doctest_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/doctest_main.cpp")
target_link_libraries(fsdp_doctest_main PUBLIC fsdp_options doctest::doctest)
fsdp_compile_quickly(fsdp_doctest_main PUBLIC)
target_compile_definitions(fsdp_doctest_main PUBLIC
  FSDP_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/data" FSDP_FIXTURE_DIR="${PROJECT_SOURCE_DIR}/tests/fixtures")

# Seconds until a test counts as hung, by label; the longest of a test's labels counts. A test has a TIMEOUT of its own
# only where it differs from its kind, and its comment says why.
set(FSDP_TIMEOUTS bench=5400 checks=120 cli=600 cluster=900 differential=300 fuzz=7200 gpu=300 install=240 isa=450
  long=3600 mpi=120 parity=300 unit=450)

function(fsdp_add_test name)
  cmake_parse_arguments(ARG "SERIAL;LONG" "TIMEOUT;PROCESSORS;LOCK" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  if(ARG_LONG)
    list(REMOVE_ITEM ARGN LONG)
    list(APPEND ARGN LABELS long ENVIRONMENT FSDP_ALL=1 FUZZ_SECONDS=60)  # ARGN's lists go on
    fsdp_add_test(long.${name} ${ARGN})
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 0)
    foreach(limit IN LISTS FSDP_TIMEOUTS)
      string(REGEX MATCH "^(.+)=(.+)$" limit "${limit}")
      if(CMAKE_MATCH_1 IN_LIST ARG_LABELS AND CMAKE_MATCH_2 GREATER ARG_TIMEOUT)
        set(ARG_TIMEOUT ${CMAKE_MATCH_2})
      endif()
    endforeach()
    if(ARG_TIMEOUT EQUAL 0)
      message(FATAL_ERROR "${name}: none of its labels '${ARG_LABELS}' has a time limit in FSDP_TIMEOUTS")
    endif()
  endif()
  math(EXPR ARG_TIMEOUT "2 * ${ARG_TIMEOUT}")  # two tests share a core
  if(FSDP_SANITIZE)
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")
  endif()
  if(CMAKE_CROSSCOMPILING)
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")  # emulation is 5 to 50 times slower
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  if(NOT "bench" IN_LIST ARG_LABELS)
    # Tests share cores: threads that wait by spinning, as libgomp's do, took 40 % of the processors' time.
    list(PREPEND ARG_ENVIRONMENT OMP_WAIT_POLICY=passive)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCESSORS} LABELS "${ARG_LABELS}"
    SKIP_RETURN_CODE 77 ENVIRONMENT "${ARG_ENVIRONMENT}")
  if(ARG_LOCK)
    # Tests that wait for one another begin first: the last of them would run alone. COST is in seconds of others.
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK ${ARG_LOCK} COST 1000)
  endif()
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# ATen's headers cost ten seconds per file. The target is an executable, because a precompiled header fits only one kind
# of position-independent code.
add_executable(fsdp_torch_headers "${PROJECT_SOURCE_DIR}/tests/support/headers_main.cpp")
target_link_libraries(fsdp_torch_headers PRIVATE fsdp_doctest_main fsdp::torch_cpu)
target_precompile_headers(fsdp_torch_headers PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/torch_doctest.hpp")
set_target_properties(fsdp_torch_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
if(CCACHE_PROGRAM)
  # ccache knows a precompiled header by its preprocessed text, which has no comments. The compiler knows a file that
  # was included once by all of its text: after a change of a comment, ccache's header would let it in a second time.
  set_target_properties(fsdp_torch_headers PROPERTIES CXX_COMPILER_LAUNCHER
    "env;CCACHE_EXTRAFILES=${PROJECT_SOURCE_DIR}/tests/support/torch_doctest.hpp;${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()

# Precompiled headers for tests without LibTorch: doctest, JSON and large standard headers cost three seconds per file.
add_executable(fsdp_plain_headers "${PROJECT_SOURCE_DIR}/tests/support/headers_main.cpp")
target_link_libraries(fsdp_plain_headers PRIVATE fsdp_doctest_main nlohmann_json::nlohmann_json)
target_precompile_headers(fsdp_plain_headers PRIVATE <doctest/doctest.h> <nlohmann/json.hpp> <filesystem> <functional>
  <random> <string> <thread> <vector>)
set_target_properties(fsdp_plain_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")

function(fsdp_unit_test folder)
  string(REPLACE / _ name "${folder}")
  cmake_parse_arguments(ARG "TORCH;LONG" "" "LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/unit/${folder}/*_test.cpp")
  add_executable(unit_${name} ${sources})
  target_link_libraries(unit_${name} PRIVATE fsdp_doctest_main ${ARG_LINKS})
  if(ARG_TORCH)
    target_precompile_headers(unit_${name} REUSE_FROM fsdp_torch_headers)
  else()
    target_precompile_headers(unit_${name} REUSE_FROM fsdp_plain_headers)
  endif()
  set_target_properties(unit_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  set(long)
  if(ARG_LONG)
    set(long LONG)
  endif()
  fsdp_add_test(unit.${name} COMMAND unit_${name} LABELS unit ${long})
  set_property(GLOBAL APPEND PROPERTY FSDP_UNIT_TESTS unit_${name})
endfunction()

# Programs as functions of a target: the objects of each as one, with main() under the program's name (fsdp_eval_main).
function(fsdp_link_programs target)
  foreach(program IN LISTS ARGN)
    string(REPLACE - _ function "${program}_main")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${program}.o")
    add_custom_command(OUTPUT "${object}" DEPENDS ${program} COMMAND_EXPAND_LISTS VERBATIM
      COMMAND "${CMAKE_LINKER}" -r -o "${object}" $<TARGET_OBJECTS:${program}>
      COMMAND "${CMAKE_OBJCOPY}" --redefine-sym main=${function} "${object}")
    target_sources(${target} PRIVATE "${object}")
  endforeach()
endfunction()
