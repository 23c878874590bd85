# shellcheck shell=bash # sourced by scripts/dist
# NVIDIA libraries that other libraries open by name at run time, so that ldd does not list them. For scripts/dist.

# opened_by_name SITE_PACKAGES: prints the parts of cuDNN, and NVRTC, with which PyTorch and cuDNN compile kernels at run time.
opened_by_name() {
    compgen -G "$1/nvidia/cudnn/lib/*.so*" || true
    find "$1/nvidia" \( -name 'libnvrtc.so*' -o -name 'libnvrtc-builtins.so*' \) ! -name '*alt*' 2>/dev/null || true
}
