# cmake --install: programs go to bin/, job scripts and data to share/fsdp/, documents to share/doc/fsdp/, manual pages
# to share/man/, completion to share/bash-completion/. lib/compute/cuda installs itself; FsdpLibrary.cmake installs the
# library.
# Installed programs search their own lib/ first (scripts/dist fills it), then the directories of LibTorch and MPI at
# build time.
include(GNUInstallDirs)

# List the directories here, because CMake leaves folders of the source tree, such as .deps, out of
# INSTALL_RPATH_USE_LINK_PATH.
set(install_rpath "$ORIGIN/../lib" "${LibTorch_LIBRARY_DIR}")
foreach(library IN LISTS MPI_CXX_LIBRARIES)
  get_filename_component(directory "${library}" DIRECTORY)
  list(APPEND install_rpath "${directory}")
endforeach()
list(REMOVE_DUPLICATES install_rpath)

get_property(programs GLOBAL PROPERTY FSDP_PROGRAMS)
foreach(program IN LISTS programs)
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "${install_rpath}" INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endforeach()
install(DIRECTORY slurm pbs DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp COMPONENT rest USE_SOURCE_PERMISSIONS)
install(DIRECTORY scripts/jobs scripts/gpu_check DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/scripts COMPONENT rest
  USE_SOURCE_PERMISSIONS PATTERN __pycache__ EXCLUDE)
install(FILES tests/fixtures/tokenizers/tokenizer.model DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data/tiny_llama
  COMPONENT rest)
install(PROGRAMS scripts/gpu-check scripts/lessons scripts/site-check scripts/tiny_adder scripts/tiny_falcon scripts/tiny_llama
  scripts/tiny_qwen
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/scripts COMPONENT rest)
install(DIRECTORY data/shakespeare data/gpt2 data/chess data/preferences DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data COMPONENT rest)
install(FILES data/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data COMPONENT rest)
# Pages in docs link to the other ones.
install(DIRECTORY docs packaging DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rest)
install(FILES LICENSE CITATION.cff CHANGELOG.md CODE_OF_CONDUCT.md CONTRIBUTING.md README.md SECURITY.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rest)

# bash finds completions by program name, so each program gets a link to the one file.
if(FSDP_HAS_MANUAL)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/man/" DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT manual
    FILES_MATCHING PATTERN "*.1")
  set(completions "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${PROJECT_BINARY_DIR}/completion/fsdp" DESTINATION "${completions}" COMPONENT manual)
  foreach(program IN LISTS programs)
    install(CODE "file(CREATE_LINK fsdp \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${completions}/${program}\" SYMBOLIC)"
      COMPONENT manual)
  endforeach()
endif()

# Lmod reads the .lua file, environment-modules the other one.
set(modulefiles "${CMAKE_INSTALL_DATADIR}/modulefiles/fsdp")
install(FILES packaging/modulefiles/fsdp.lua DESTINATION "${modulefiles}" RENAME "${PROJECT_VERSION}.lua"
  COMPONENT modules)
install(FILES packaging/modulefiles/fsdp.tcl DESTINATION "${modulefiles}" RENAME "${PROJECT_VERSION}" COMPONENT modules)
