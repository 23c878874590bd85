#include "lib/hub/hub_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lib/base/text/json_text.hpp"
#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"
#include "lib/hub/content_hash.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_failure.hpp"

namespace fsdp {
namespace {

constexpr int kMostRedirects = 8;
constexpr std::size_t kLongestAnswerBytes = 256u << 20;
constexpr std::size_t kMostFiles = 5'000'000;

HttpSettings http_settings(const HubSettings& settings) {
  return {settings.connect_timeout, settings.stall_timeout, "fsdp-download/" FSDP_VERSION, find_ca_bundle()};
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// Forwards the final response to a sink and skips redirects.
class FinalResponse : public HttpSink {
 public:
  explicit FinalResponse(HttpSink& sink) : sink_(sink) {}
  bool head(const HttpHead& head) override {
    redirect_ = is_redirect(head.status) && !head.header("location").empty();
    return redirect_ || sink_.head(head);
  }
  // Reading a short body to its end keeps the connection reusable; a long body is not worth the transfer.
  bool body(std::span<const std::byte> bytes) override {
    return redirect_ ? (skipped_ += bytes.size()) < 65536 : sink_.body(bytes);
  }

 private:
  HttpSink& sink_;
  bool redirect_ = false;
  std::size_t skipped_ = 0;
};

class TextSink : public HttpSink {
 public:
  bool head(const HttpHead&) override {
    text.clear();
    return true;
  }
  bool body(std::span<const std::byte> bytes) override {
    if (text.size() + bytes.size() > kLongestAnswerBytes) throw FormatError("the hub's answer is unreasonably long");
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  std::string text;
};

/// Refuses a compressed answer, which was not requested and cannot be decoded here. \throws FormatError
void refuse_encoded(const HubAnswer& answer) {
  auto encoding = printable(answer.head.header("content-encoding"));
  if (encoding.empty() || encoding == "identity") return;
  throw FormatError(loggable_url(answer.url) + ": the answer is encoded as " + encoding +
                    ", though \"identity\" was asked for: a proxy or a mirror does that, and must not");
}

/// File names in a repository's description; empty when it names none.
std::vector<std::string> described_files(const nlohmann::json& description) {
  std::vector<std::string> names;
  const auto siblings = description.find("siblings");
  if (siblings == description.end() || !siblings->is_array()) return names;
  for (const auto& one : *siblings) {
    if (one.is_object() && one.contains("rfilename") && one["rfilename"].is_string()) names.push_back(one["rfilename"]);
  }
  return names;
}

/// Number of entries that the server announces; 0 when it announces none.
std::size_t total_of(const HttpHead& head) {
  const auto& text = head.header("x-total-count");
  std::size_t total = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), total);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() ? total : 0;
}

std::optional<RemoteFile> listed_file(const nlohmann::json& entry) {
  if (entry.at("type") != "file") return std::nullopt;
  RemoteFile file{entry.at("path").get<std::string>(), size_from_json(entry.at("size")),
                  entry.at("oid").get<std::string>(), std::nullopt, std::nullopt};
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.lfs_sha256 = lfs->contains("oid") ? lfs->at("oid").get<std::string>() : lfs->at("sha256").get<std::string>();
    file.size_bytes = size_from_json(lfs->at("size"));
  }
  if (const auto xet = entry.find("xetHash"); xet != entry.end() && xet->is_string()) file.xet_hash = *xet;
  check_remote_file(file);
  return file;
}

std::string api_url(const HubSettings& settings, const RepoId& repo) {
  return settings.endpoint + "/api/" + repo.type_word() + "s/" + repo.name;
}

}  // namespace

HubClient::HubClient(const HubSettings& settings, const RetryPolicy& retries, std::function<bool()> stop)
    : settings_(settings),
      retries_(retries),
      stop_(std::move(stop)),
      http_(http_settings(settings), stop_),
      origin_(url_origin(settings.endpoint)) {}

bool HubClient::is_endpoint(const std::string& url) const { return url_origin(url) == origin_; }

HubAnswer HubClient::get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink) {
  HubAnswer answer{{}, url};
  FinalResponse final_response(sink);
  for (int i = 0; i <= kMostRedirects; ++i) {
    auto all = headers;
    all.emplace_back("Accept-Encoding: identity");
    if (!settings_.token.empty() && is_endpoint(answer.url)) {
      all.push_back("Authorization: Bearer " + settings_.token);
    }
    try {
      answer.head = http_.get(answer.url, all, final_response);
    } catch (const TransferCut& cut) {
      throw TransferCut(url_host(answer.url) + ": " + cut.what());
    }
    const auto& location = answer.head.header("location");
    if (!is_redirect(answer.head.status) || location.empty()) return answer;
    answer.url = resolve_url(answer.url, location);
  }
  throw IoError(loggable_url(url) + ": redirects more than " + std::to_string(kMostRedirects) + " times");
}

HubClient::TextAnswer HubClient::get_text(const std::string& url, const RepoId& repo, const std::string& revision) {
  Backoff backoff(retries_, stop_);
  while (true) {
    TextSink sink;
    std::optional<std::chrono::seconds> asked;
    std::string reason;
    Advice advice;
    try {
      auto answer = get(url, {}, sink);
      if (answer.head.status == 200) {
        refuse_encoded(answer);
        return {std::move(sink.text), std::move(answer.head), std::move(answer.url)};
      }
      const auto failure = hub_failure(answer.head, {repo, revision, ""}, settings_);
      if (!worth_retrying(answer.head.status)) throw failure;
      reason = failure.what();
      advice = failure.advice();
      asked = wait_asked_by(answer.head);
    } catch (const TransferCut& cut) {
      reason = "cannot reach " + loggable_url(settings_.endpoint) + ": " + cut.what() +
               ". Compute nodes often have no way out: run this on a login or data-transfer node, or set https_proxy";
    }
    if (stop_ && stop_()) throw DownloadStopped();
    if (retries_.tell && retries_.attempts > 1 && backoff.failures() == 0)
      retries_.tell(reason + fmt::format(". Trying again, {} attempts in about {} s; Ctrl-C ends it", retries_.attempts,
                                         retries_.longest_trial().count() / 1000));
    if (!backoff.wait(asked)) throw Error(ExitCode::failed, reason, advice);
  }
}

ResolvedRevision HubClient::resolve_revision(const RepoId& repo, const std::string& revision) {
  const auto answer = get_text(api_url(settings_, repo) + "/revision/" + percent_encode(revision), repo, revision);
  try {
    const auto json = parse_json(answer.text, loggable_url(answer.url));
    ResolvedRevision resolved{json.at("sha").get<std::string>(), json.value("id", repo.name), described_files(json)};
    if (is_commit_id(resolved.commit)) return resolved;
  } catch (const nlohmann::json::exception&) {
    // Handled below like an answer without a commit.
  }
  throw FormatError(loggable_url(answer.url) + ": the answer names no commit: is HF_ENDPOINT a Hugging Face hub?");
}

std::vector<RemoteFile> HubClient::list_files(const RepoId& repo, const std::string& commit) {
  std::map<std::string, RemoteFile> files;
  std::set<std::string> pages;
  std::size_t entries = 0, total = 0;
  std::optional<std::string> url = api_url(settings_, repo) + "/tree/" + commit + "?recursive=true&expand=false";
  while (url) {
    const auto endless = [&](const std::string& why) {
      throw FormatError(repo.name + ": the hub's listing does not end: " + why);
    };
    if (!pages.insert(*url).second) endless("page " + std::to_string(pages.size()) + " leads back to an earlier one");
    const auto answer = get_text(*url, repo, commit);
    bool empty = true;
    try {
      for (const auto& entry : parse_json(answer.text, loggable_url(answer.url))) {
        empty = false;
        ++entries;
        auto file = listed_file(entry);
        if (!file) continue;
        const auto path = file->path;
        if (!files.emplace(path, std::move(*file)).second) {
          throw FormatError(repo.name + ": the hub lists " + path + " twice");
        }
      }
    } catch (const nlohmann::json::exception& error) {
      throw FormatError(loggable_url(answer.url) + ": not a listing of files: " + error.what());
    }
    total = std::max(total, total_of(answer.head));
    url = next_link(answer.head.header("link"));
    if (url && empty) endless("a page without files leads to another");
    if (files.size() > kMostFiles) endless("more than " + std::to_string(kMostFiles) + " files");
    if (url) url = resolve_url(answer.url, *url);
  }
  if (entries < total) {
    throw FormatError(repo.name + ": the hub says that its listing has " + std::to_string(total) +
                      " entries and lists " + std::to_string(entries));
  }
  std::vector<RemoteFile> sorted;
  for (auto& [path, file] : files) sorted.push_back(std::move(file));
  return sorted;
}

void check_listing(const std::string& repo, const std::vector<RemoteFile>& listed,
                   const std::vector<std::string>& described) {
  std::set<std::string_view> paths;
  for (const auto& file : listed) paths.insert(file.path);
  for (const auto& name : described) {
    if (paths.contains(name)) continue;
    throw FormatError(repo + ": the hub says that the repository has " + std::to_string(described.size()) +
                      " files and lists " + std::to_string(listed.size()) + "; " + printable(name) +
                      " is not in its listing");
  }
}

std::string HubClient::file_url(const RepoId& repo, const std::string& commit, const std::string& path) const {
  const auto prefix = repo.type == RepoType::dataset ? "/datasets/" : "/";
  return settings_.endpoint + prefix + repo.name + "/resolve/" + commit + "/" + percent_encode(path, "/");
}

}  // namespace fsdp
