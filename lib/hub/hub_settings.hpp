#pragma once
// The hub's endpoint, cache and token, read from the environment variables that huggingface_hub uses.
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp {

struct HubSettings {
  std::string endpoint;             ///< URL without a trailing slash
  std::string token;                ///< "" for none; never logged; sent to the endpoint's origin only
  std::string token_source;         ///< "HF_TOKEN" or the file's path, for messages
  std::filesystem::path cache_dir;  ///< folder of models--ORG--NAME; empty when the environment names none
  bool offline = false;
  bool symlinks = true;
  std::chrono::seconds connect_timeout{10};  ///< HF_HUB_ETAG_TIMEOUT
  std::chrono::seconds stall_timeout{10};    ///< HF_HUB_DOWNLOAD_TIMEOUT
};

/// Value of an environment variable, "" when it is not set.
using Environment = std::function<std::string(const char* name)>;
Environment process_environment();

/// Reads HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE (HUGGINGFACE_HUB_CACHE), XDG_CACHE_HOME, HOME,
/// HF_HUB_OFFLINE (TRANSFORMERS_OFFLINE), HF_HUB_DISABLE_SYMLINKS, HF_HUB_DISABLE_IMPLICIT_TOKEN and the timeouts.
/// \throws UsageError when a value is invalid
HubSettings hub_settings(const Environment& environment);

}  // namespace fsdp
