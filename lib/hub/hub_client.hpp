#pragma once
// The hub's HTTP interface: revisions, file listings and download URLs.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_failure.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"

namespace fsdp {

/// The final response of a GET request, after redirects.
struct HubAnswer {
  HttpHead head;
  std::string url;
};

struct ResolvedRevision {
  std::string commit;
  std::string name;  ///< name of the repository on the hub, which differs from the requested one after a rename
  std::vector<std::string> files;  ///< files that the repository's description names; may be incomplete or empty
};

/// Refuses a listing that lacks a file named in the repository's description.
/// \param repo  name of the repository, for the message
/// \throws FormatError naming the file
void check_listing(const std::string& repo, const std::vector<RemoteFile>& listed,
                   const std::vector<std::string>& described);

/// Client of one hub. Not thread-safe: each thread needs its own client.
class HubClient {
 public:
  HubClient(const HubSettings& settings, const RetryPolicy& retries, std::function<bool()> stop);

  /// Sends a GET request and follows redirects; the sink receives only the last response. The token is sent to the
  /// endpoint's origin only.
  /// \throws TransferCut, IoError
  HubAnswer get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink);

  /// Resolves `revision` (a branch, tag or commit) to a commit. \throws Error that says what to do
  ResolvedRevision resolve_revision(const RepoId& repo, const std::string& revision);
  /// Lists all files of a commit, sorted by path.
  /// \throws Error; FormatError when the listing is malformed or shorter than the server says
  std::vector<RemoteFile> list_files(const RepoId& repo, const std::string& commit);
  /// Download URL of a file; the hub may redirect it.
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

/// Thrown when the user or the scheduler stops the work.
class DownloadStopped : public std::runtime_error {
 public:
  DownloadStopped() : std::runtime_error("stopped") {}
};

}  // namespace fsdp
