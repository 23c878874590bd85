# Cross-compiles for AArch64 with Debian's cross compiler; scripts/cross uses it.
#
#   FSDP_SYSROOT   an unpacked Debian for AArch64: headers and libraries
#   FSDP_VENV      LibTorch, MPI and Arrow for AArch64, laid out as scripts/setup lays out .deps/venv
# Programs that the build or ctest starts run under qemu's user-mode emulation when it is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FSDP_SYSROOT FSDP_VENV)

set(CMAKE_SYSROOT "${FSDP_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH "${FSDP_SYSROOT}" "${FSDP_VENV}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Let CMake search for HDF5 itself: h5cc of the build machine would name the build machine's HDF5.
set(HDF5_C_COMPILER_EXECUTABLE "" CACHE FILEPATH "")
set(CMAKE_INCLUDE_PATH /usr/include/hdf5/serial)
set(CMAKE_LIBRARY_PATH /usr/lib/aarch64-linux-gnu/hdf5/serial)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${FSDP_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${FSDP_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${FSDP_SYSROOT}/usr/share/pkgconfig")
unset(ENV{PKG_CONFIG_PATH})

find_program(FSDP_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(FSDP_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${FSDP_QEMU};-L;${FSDP_SYSROOT}")
endif()
