# shellcheck shell=bash # sourced by scripts/dist
# Libraries of NVIDIA's that others open by name as they run, so that no list of needed ones has them. For scripts/dist.

# SITE_PACKAGES: the parts of cuDNN, and NVRTC, by which PyTorch and cuDNN compile kernels that they write as they run.
opened_by_name() {
    compgen -G "$1/nvidia/cudnn/lib/*.so*" || true
    find "$1/nvidia" \( -name 'libnvrtc.so*' -o -name 'libnvrtc-builtins.so*' \) ! -name '*alt*' 2>/dev/null || true
}
