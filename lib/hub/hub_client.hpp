#pragma once
// The hub's protocol: revisions, listings, and where a file's bytes are.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_failure.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

/// Where a GET ended after its redirects.
struct HubAnswer {
  HttpHead head;
  std::string url;
};

struct ResolvedRevision {
  std::string commit;
  std::string name;  ///< what the hub calls the repository: another name than asked for when it was renamed
  std::vector<std::string> files;  ///< of the repository, where the answer names them; perhaps not all
};

/// Refuses a listing that lacks one of the files that the repository's description names.
/// \param repo  its name, for the message \throws FormatError naming the file
void check_listing(const std::string& repo, const std::vector<RemoteFile>& listed,
                   const std::vector<std::string>& described);

/// Talks to one hub. Not thread-safe: one for each thread.
class HubClient {
 public:
  HubClient(const HubSettings& settings, const RetryPolicy& retries, std::function<bool()> stop);

  /// GET with redirects followed; the sink sees the last response only. The token goes to the endpoint's origin and
  /// nowhere else.
  /// \throws TransferCut, IoError
  HubAnswer get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink);

  /// The commit that `revision` (branch, tag, commit) names. \throws Error saying what to do
  ResolvedRevision resolve_revision(const RepoId& repo, const std::string& revision);
  /// All files of a commit, by path. \throws Error; FormatError, also where there are fewer than the server says
  std::vector<RemoteFile> list_files(const RepoId& repo, const std::string& commit);
  /// Where a file is to be had; the hub may redirect from there.
  std::string file_url(const RepoId& repo, const std::string& commit, const std::string& path) const;

  bool is_endpoint(const std::string& url) const;
  const HubSettings& settings() const { return settings_; }

 private:
  struct TextAnswer {
    std::string text;
    HttpHead head;
    std::string url;
  };
  TextAnswer get_text(const std::string& url, const RepoId& repo, const std::string& revision);

  HubSettings settings_;
  RetryPolicy retries_;
  std::function<bool()> stop_;
  HttpClient http_;
  std::string origin_;
};

/// Thrown where work ends because the user or the scheduler asked for it.
class DownloadStopped : public std::runtime_error {
 public:
  DownloadStopped() : std::runtime_error("stopped") {}
};

}  // namespace fsdp
