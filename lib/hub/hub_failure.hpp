#pragma once
#include <string>

#include "lib/base/error.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

/// What was asked for when the hub refused.
struct HubRequest {
  RepoId repo;
  std::string revision;
  std::string path;  ///< "" for the repository itself
};

/// The hub's answer `head` (a status of 400 and more) in words that say what to do. Not found is bad input (exit code
/// 4), everything else a failure (1). Source of the codes: huggingface_hub utils/_http.py, hf_raise_for_status.
Error hub_failure(const HttpHead& head, const HubRequest& request, const HubSettings& settings);

}  // namespace fsdp
