# Makes manual pages (man/*.1) and bash completion (completion/fsdp) in the build folder from the programs' option
# descriptions and from docs/. A cross build cannot run the programs and makes none.
option(FSDP_MANUAL "Make manual pages and completion for bash, by running the programs" ON)

find_program(FSDP_MANUAL_PYTHON NAMES python3)
set(FSDP_HAS_MANUAL OFF)
if(NOT FSDP_MANUAL OR CMAKE_CROSSCOMPILING)
  message(STATUS "manual pages and completion: not made (FSDP_MANUAL is off, or the programs are for another machine)")
elseif(NOT FSDP_MANUAL_PYTHON)
  message(STATUS "manual pages and completion: not made, no python3 was found")
else()
  set(FSDP_HAS_MANUAL ON)
  get_property(programs GLOBAL PROPERTY FSDP_PROGRAMS)
  file(GLOB manual_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/manual/*"
    "${PROJECT_SOURCE_DIR}/docs/fsdp-*.md")
  set(manual_stamp "${PROJECT_BINARY_DIR}/man/fsdp-finetune.1")
  add_custom_command(OUTPUT "${manual_stamp}" "${PROJECT_BINARY_DIR}/completion/fsdp"
    COMMAND "${CMAKE_COMMAND}" -E env PYTHONDONTWRITEBYTECODE=1 "${FSDP_MANUAL_PYTHON}"
      "${PROJECT_SOURCE_DIR}/cmake/manual/make.py" --bin "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
      --source "${PROJECT_SOURCE_DIR}" --out "${PROJECT_BINARY_DIR}"
    DEPENDS ${programs} ${manual_sources} "${PROJECT_SOURCE_DIR}/docs/exit-codes.md"
      "${PROJECT_SOURCE_DIR}/CHANGELOG.md"
    COMMENT "Writing manual pages and completion" VERBATIM)
  add_custom_target(manual ALL DEPENDS "${manual_stamp}" "${PROJECT_BINARY_DIR}/completion/fsdp")
endif()
