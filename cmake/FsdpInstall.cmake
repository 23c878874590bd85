# cmake --install: programs in bin/, job scripts and data in share/fsdp/, text in share/doc/fsdp/, manual pages in
# share/man/, completion in share/bash-completion/; lib/compute/cuda installs itself, FsdpLibrary.cmake the library.
# The installed programs look in their own lib/ first (scripts/dist fills it) and then where LibTorch and MPI were at
# build time.
include(GNUInstallDirs)

# Named one by one: CMake leaves folders of the source tree, such as .deps, out of INSTALL_RPATH_USE_LINK_PATH.
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
  PATTERN __pycache__ EXCLUDE)
install(FILES tests/fixtures/tokenizers/tokenizer.model DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data/tiny_llama
  COMPONENT rest)
install(PROGRAMS scripts/gpu-check scripts/lessons scripts/tiny_llama scripts/tiny_qwen
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/scripts COMPONENT rest)
install(DIRECTORY data/shakespeare data/gpt2 data/chess DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data COMPONENT rest)
install(FILES data/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp/data COMPONENT rest)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rest)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rest)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT rest OPTIONAL)

# Under each program's name, by which bash finds it: links to one file.
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

# For Lmod and for environment-modules, which each read their own of the two.
set(modulefiles "${CMAKE_INSTALL_DATADIR}/modulefiles/fsdp")
install(FILES packaging/modulefiles/fsdp.lua DESTINATION "${modulefiles}" RENAME "${PROJECT_VERSION}.lua"
  COMPONENT modules)
install(FILES packaging/modulefiles/fsdp.tcl DESTINATION "${modulefiles}" RENAME "${PROJECT_VERSION}" COMPONENT modules)
