# Finds LibTorch without LibTorch's own TorchConfig.cmake, which requires a complete CUDA toolkit when the libraries
# were built for CUDA, even to build programs that never use a GPU.
#
# Searches, in this order, Torch_DIR, CMAKE_PREFIX_PATH (so a site's LibTorch takes precedence) and the project's own
# .deps/venv.
# LibTorch_TO_LINK leaves out what only this project's own build needs: probes and CUDA (cmake/fsdpConfig.cmake.in).
# Defines the target fsdp::torch_cpu (libtorch_cpu, libc10, headers) and, when the installation has libtorch_cuda and
# the headers of CUDA and NCCL, fsdp::torch_cuda. LibTorch_OPENMP_LIBRARY is the OpenMP library of LibTorch's threads.
include(FindPackageHandleStandardArgs)

set(_torch_hints "")
if(Torch_DIR)
  list(APPEND _torch_hints "${Torch_DIR}/../../.." "${Torch_DIR}")
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _torch_hints "${_prefix}" "${_prefix}/libtorch" "${_prefix}/torch")
endforeach()
foreach(_prefix $ENV{CMAKE_PREFIX_PATH} $ENV{Torch_DIR})
  list(APPEND _torch_hints "${_prefix}" "${_prefix}/../../..")
endforeach()
file(GLOB _torch_wheels "${FSDP_VENV}/lib/python3*/site-packages/torch")
list(APPEND _torch_hints ${_torch_wheels})

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${_torch_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h)
if(LibTorch_INCLUDE_DIR)
  get_filename_component(LibTorch_ROOT "${LibTorch_INCLUDE_DIR}" DIRECTORY)
endif()
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${LibTorch_ROOT} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${LibTorch_ROOT} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10)
find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${LibTorch_ROOT} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${LibTorch_ROOT} PATH_SUFFIXES lib NO_DEFAULT_PATH)

if(EXISTS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
elseif(EXISTS "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h")
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include/torch/version.h" _version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
endif()
string(REGEX REPLACE "[^0-9;]" "" _version_parts "${_version_lines}")
string(REPLACE ";" "." LibTorch_VERSION "${_version_parts}")

find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup, or set Torch_DIR or CMAKE_PREFIX_PATH to a LibTorch installation")

if(LibTorch_FOUND AND NOT TARGET fsdp::torch_cpu)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  get_filename_component(_site_packages "${LibTorch_ROOT}" DIRECTORY)
  # Prefer the OpenMP library that LibTorch uses, so that there is only one thread pool; else take the compiler's.
  file(GLOB _openmp "${LibTorch_LIBRARY_DIR}/libgomp*.so*" "${_site_packages}/torch.libs/libgomp*.so*"
    "${LibTorch_LIBRARY_DIR}/libiomp5.so" "${LibTorch_LIBRARY_DIR}/libomp.so")
  list(APPEND _openmp gomp)
  list(GET _openmp 0 LibTorch_OPENMP_LIBRARY)
  # The wheel keeps the CUDA runtime beside torch; the linker must find it although no target here names it.
  file(GLOB LibTorch_CARRIER_DIRS "${_site_packages}/nvidia/*/lib")
  add_library(fsdp::torch_cpu INTERFACE IMPORTED)
  target_include_directories(fsdp::torch_cpu SYSTEM INTERFACE "${LibTorch_INCLUDE_DIR}"
    "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  target_link_libraries(fsdp::torch_cpu INTERFACE "${LibTorch_CPU_LIBRARY}" "${LibTorch_C10_LIBRARY}")
  target_link_options(fsdp::torch_cpu INTERFACE "-Wl,-rpath-link,${LibTorch_LIBRARY_DIR}")
  foreach(_dir IN LISTS LibTorch_CARRIER_DIRS)
    target_link_options(fsdp::torch_cpu INTERFACE "-Wl,-rpath-link,${_dir}")
  endforeach()
endif()

# PyTorch's entry point to oneDNN, mkldnn_matmul, is exported but not declared in any header (lib/compute/ops/products/gemm.cpp
# has a fallback without it).
if(LibTorch_FOUND AND NOT LibTorch_TO_LINK)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES fsdp::torch_cpu)
  check_cxx_source_compiles("
    #include <ATen/core/Tensor.h>
    namespace at::native { void mkldnn_matmul(const Tensor&, const Tensor&, const Tensor&, float, float); }
    int main() { at::native::mkldnn_matmul({}, {}, {}, 0.0f, 1.0f); }" LibTorch_HAS_MKLDNN_MATMUL)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(LibTorch_HAS_MKLDNN_MATMUL)
    target_compile_definitions(fsdp::torch_cpu INTERFACE FSDP_HAS_MKLDNN_MATMUL)
  endif()
  # Differences in GPU memory, which programs without GPU predict, too (lib/compute/tensor/torch_compat.hpp). PyTorch keeps
  # cuBLASLt's workspace since it has this function.
  set(_context "${LibTorch_INCLUDE_DIR}/ATen/cuda/CUDAContextLight.h")
  if(EXISTS "${_context}")
    file(STRINGS "${_context}" _keeps REGEX "getCUDABlasLtWorkspace\\(")
    if(NOT _keeps)
      target_compile_definitions(fsdp::torch_cpu INTERFACE FSDP_LT_WORKSPACE_ENDS)
    endif()
  endif()
  # A wheel of PyTorch names its cuDNN.
  file(GLOB _metadata "${LibTorch_ROOT}/../torch-${LibTorch_VERSION}[.+]*dist-info/METADATA")
  if(_metadata)
    file(STRINGS "${_metadata}" _cudnn REGEX "^Requires-Dist: nvidia-cudnn-cu[0-9]+==")
    if("${_cudnn}" MATCHES "==([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS 9.15.1)
      target_compile_definitions(fsdp::torch_cpu INTERFACE FSDP_OLD_CUDNN)
    endif()
  endif()
endif()

# --- CUDA: headers and libraries to compile against; neither nvcc nor a toolkit is needed ------------------------------
# Wheels are searched first, because they hold what LibTorch itself was built with. LibTorch_CUDA_MISSING names what was
# not found. LibTorch_NVCC_WORKS is true when LibTorch_NVCC with LibTorch_NVCC_FLAGS compiles kernels.
set(LibTorch_HAS_CUDA OFF)
set(LibTorch_CUDA_MISSING "")
if(LibTorch_TO_LINK)
  set(LibTorch_CUDA_MISSING "what asks for it")
elseif(LibTorch_FOUND AND NOT (LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY))
  set(LibTorch_CUDA_MISSING "libtorch_cuda (this LibTorch is for the CPU)")
elseif(LibTorch_FOUND)
  set(_cuda_roots ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
  # Wheels of another CUDA may be there, left by another torch: those fit whose runtime LibTorch asks for. From CUDA 13
  # on they share the folder cu13; those of CUDA 12 have a folder for each part.
  file(STRINGS "${LibTorch_C10_CUDA_LIBRARY}" _cudart REGEX "libcudart\\.so\\.[0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE ".*libcudart\\.so\\.([0-9]+).*" "\\1" _cuda_major "${_cudart}")
  if(_cuda_major EQUAL 12)
    set(_cuda_wheels "${_site_packages}/nvidia/cuda_runtime")
  else()
    file(GLOB _cuda_wheels "${_site_packages}/nvidia/cu${_cuda_major}*")
  endif()
  find_path(CudaRuntime_INCLUDE_DIR cuda_runtime_api.h HINTS ${_cuda_wheels} ${_cuda_roots} PATH_SUFFIXES include)
  # Prefer the library of the installation that the headers come from.
  get_filename_component(_cuda_root "${CudaRuntime_INCLUDE_DIR}" DIRECTORY)
  find_library(CudaRuntime_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
    HINTS "${_cuda_root}" ${_cuda_wheels} ${_cuda_roots} PATH_SUFFIXES lib lib64)
  # Since CUDA 13 the runtime's headers include crt/, which another wheel has (nvidia-cuda-crt). A toolkit has it, and
  # so does triton, which every CUDA wheel of LibTorch depends on.
  find_path(CudaCrt_INCLUDE_DIR crt/host_defines.h
    HINTS "${CudaRuntime_INCLUDE_DIR}" ${_cuda_wheels} "${_site_packages}/nvidia/cuda_nvcc" ${_cuda_roots}
      "${_site_packages}/triton/backends/nvidia" PATH_SUFFIXES include)
  set(_nccl_roots "${_site_packages}/nvidia/nccl" ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME})
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl_roots} ${_cuda_roots} PATH_SUFFIXES include)
  get_filename_component(_nccl_root "${NCCL_INCLUDE_DIR}" DIRECTORY)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS "${_nccl_root}" ${_nccl_roots} ${_cuda_roots}
    PATH_SUFFIXES lib lib64)

  foreach(_piece "CudaRuntime_INCLUDE_DIR:cuda_runtime_api.h" "CudaRuntime_LIBRARY:libcudart"
      "CudaCrt_INCLUDE_DIR:crt/host_defines.h" "NCCL_INCLUDE_DIR:nccl.h" "NCCL_LIBRARY:libnccl")
    string(REPLACE ":" ";" _piece "${_piece}")
    list(GET _piece 0 _variable)
    list(GET _piece 1 _file)
    if(NOT ${_variable})
      list(APPEND LibTorch_CUDA_MISSING "${_file} (set ${_variable})")
    endif()
  endforeach()
  list(JOIN LibTorch_CUDA_MISSING ", " LibTorch_CUDA_MISSING)

  if(NOT LibTorch_CUDA_MISSING)
    set(LibTorch_HAS_CUDA ON)
    # Directories of these libraries, for the rpath.
    set(LibTorch_CUDA_RPATH "")
    foreach(_library "${LibTorch_CUDA_LIBRARY}" "${NCCL_LIBRARY}" "${CudaRuntime_LIBRARY}")
      get_filename_component(_dir "${_library}" DIRECTORY)
      list(APPEND LibTorch_CUDA_RPATH "${_dir}")
    endforeach()
    list(REMOVE_DUPLICATES LibTorch_CUDA_RPATH)
    if(NOT TARGET fsdp::torch_cuda)
      add_library(fsdp::torch_cuda INTERFACE IMPORTED)
      target_include_directories(fsdp::torch_cuda SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}" "${CudaRuntime_INCLUDE_DIR}"
        "${CudaCrt_INCLUDE_DIR}")
      target_link_libraries(fsdp::torch_cuda INTERFACE fsdp::torch_cpu "${LibTorch_CUDA_LIBRARY}"
        "${LibTorch_C10_CUDA_LIBRARY}" "${CudaRuntime_LIBRARY}" "${NCCL_LIBRARY}")
    endif()
    # nvcc of LibTorch's CUDA, from a toolkit or from PyPI's nvidia-cuda-nvcc; the minor version may differ. Without nvcc,
    # PyTorch's operators are used instead of kernels.
    find_program(LibTorch_NVCC nvcc HINTS "${_cuda_root}" ${_cuda_wheels} ${_cuda_roots} PATH_SUFFIXES bin)
    if(LibTorch_NVCC AND NOT DEFINED LibTorch_NVCC_FLAGS)
      file(STRINGS "${CudaRuntime_INCLUDE_DIR}/cuda_runtime_api.h" _version REGEX "^#define CUDART_VERSION +[0-9]+")
      string(REGEX REPLACE ".* ([0-9]+)[0-9][0-9][0-9]$" "\\1" _version "${_version}")
      file(WRITE "${PROJECT_BINARY_DIR}/nvcc_probe.cu" "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n__global__ void f(float*) {}\n"
        "static_assert(__CUDACC_VER_MAJOR__ == ${_version}, \"nvcc of another CUDA than LibTorch's\");\n")
      set(LibTorch_NVCC_WORKS OFF CACHE INTERNAL "nvcc compiles")
      # nvcc finds the headers of its own CUDA, which alone fit it. It refuses compilers that are newer than it knows; then
      # a distribution's nvcc has an older one (Debian 13: g++-13 beside g++ 14).
      foreach(_compiler "-ccbin;${CMAKE_CXX_COMPILER}" "")
        set(LibTorch_NVCC_FLAGS -std=c++20 -O3 ${_compiler} CACHE INTERNAL "how nvcc compiles")
        execute_process(COMMAND "${LibTorch_NVCC}" ${LibTorch_NVCC_FLAGS} -arch=sm_80 -c -o "${PROJECT_BINARY_DIR}/nvcc_probe.o"
          "${PROJECT_BINARY_DIR}/nvcc_probe.cu" RESULT_VARIABLE _code OUTPUT_QUIET ERROR_VARIABLE _nvcc_error)
        if(_code EQUAL 0)
          set(LibTorch_NVCC_WORKS ON CACHE INTERNAL "nvcc compiles")
          break()
        endif()
        message(STATUS "${LibTorch_NVCC} does not serve: ${_nvcc_error}")
      endforeach()
    endif()
  endif()
endif()
