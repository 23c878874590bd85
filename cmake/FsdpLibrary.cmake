# Packs the engine into one static library for other programs: libfsdp.a, its headers, a CMake package and a pkg-config
# file (docs/library.md). Code that only the programs use (downloads, evaluation, jobs, command lines) is left out.
include(CMakePackageConfigHelpers)

# The libraries that a customer of the engine calls, and every library that these use.
set(library_targets optim state mpi_ranks)
set(library_folders "")
list(TRANSFORM library_targets PREPEND fsdp_)
set(queue ${library_targets})
while(queue)
  list(POP_FRONT queue target)
  get_target_property(folder ${target} SOURCE_DIR)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}/lib" "${folder}")
  list(APPEND library_folders "${folder}")
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  foreach(link IN LISTS links)
    if(TARGET ${link} AND link MATCHES "^fsdp_" AND NOT link IN_LIST library_targets)
      get_target_property(type ${link} TYPE)
      if(type STREQUAL "STATIC_LIBRARY")
        list(APPEND library_targets ${link})
        list(APPEND queue ${link})
      endif()
    endif()
  endforeach()
endwhile()
list(REMOVE_DUPLICATES library_folders)
set(library_objects "")
foreach(target IN LISTS library_targets)
  list(APPEND library_objects "$<TARGET_OBJECTS:${target}>")
endforeach()
foreach(isa IN ITEMS portable avx2 avx512)
  if(TARGET fsdp_kernels_${isa})
    list(APPEND library_objects "$<TARGET_OBJECTS:fsdp_kernels_${isa}>")
  endif()
endforeach()
add_library(fsdp_library STATIC ${library_objects})
set_target_properties(fsdp_library PROPERTIES OUTPUT_NAME fsdp LINKER_LANGUAGE CXX
  ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# Headers include each other as "lib/...". The archive goes to lib/ on every system, not to lib64, like the programs'
# other files.
set(library_include "${CMAKE_INSTALL_INCLUDEDIR}/fsdp")
foreach(folder IN LISTS library_folders)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/lib/${folder}/" DESTINATION "${library_include}/lib/${folder}"
    COMPONENT library FILES_MATCHING PATTERN "*.hpp" PATTERN plugin EXCLUDE PATTERN cuda EXCLUDE PATTERN nccl EXCLUDE)
endforeach()
install(TARGETS fsdp_library ARCHIVE DESTINATION lib COMPONENT library)

# A program must use the LibTorch and the MPI that the library was built with.
set(FSDP_HAS_URING OFF)
if(Uring_INCLUDE_DIR AND Uring_LIBRARY)
  set(FSDP_HAS_URING ON)
endif()
set(package "lib/cmake/fsdp")
set(library_archive "lib/libfsdp.a")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fsdpConfig.cmake.in" "${PROJECT_BINARY_DIR}/fsdpConfig.cmake"
  INSTALL_DESTINATION "${package}" PATH_VARS library_include library_archive)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fsdpConfig.cmake" "${PROJECT_BINARY_DIR}/fsdpConfigVersion.cmake"
  cmake/FindLibTorch.cmake DESTINATION "${package}" COMPONENT library)

# OpenMP and MPI are given by path, because the linker might find other libraries by name.
set(pc_openmp " ${LibTorch_OPENMP_LIBRARY}")
if(NOT IS_ABSOLUTE "${LibTorch_OPENMP_LIBRARY}")
  set(pc_openmp " -l${LibTorch_OPENMP_LIBRARY}")
endif()
set(pc_mpi "")
foreach(library IN LISTS MPI_CXX_LIBRARIES)
  get_filename_component(directory "${library}" DIRECTORY)
  string(APPEND pc_mpi " ${library} -Wl,-rpath,${directory}")
endforeach()
set(pc_private "-lz -ldeflate -lzstd -lpcre2-8 -lutf8proc -lsentencepiece -lpthread -ldl")
if(FSDP_HAS_URING)
  string(APPEND pc_private " -luring")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/fsdp.pc.in" "${PROJECT_BINARY_DIR}/fsdp.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/fsdp.pc" DESTINATION lib/pkgconfig COMPONENT library)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/fsdp COMPONENT library)
