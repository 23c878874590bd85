#include "lib/hub/http_client.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/base/text/text_format.hpp"
#include "lib/base/types/error.hpp"

namespace fsdp {
namespace {

struct FreeUrl {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using UrlHandle = std::unique_ptr<CURLU, FreeUrl>;

UrlHandle parse(const std::string& url) {
  UrlHandle handle(curl_url());
  if (!handle) throw std::bad_alloc();
  const auto code = curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0);
  if (code != CURLUE_OK) {
    // The credentials of a malformed URL have no certain end, so everything up to the last '@' is hidden.
    const auto at = url.rfind('@');
    const auto shown = at == std::string::npos ? url : "..." + url.substr(at);
    throw IoError("\"" + shown.substr(0, shown.find_first_of("?#")) + "\" is not a URL (http://HOST or https://HOST)");
  }
  return handle;
}

std::optional<std::string> part(const UrlHandle& url, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, flags) != CURLUE_OK) return std::nullopt;
  const std::unique_ptr<char, decltype(&curl_free)> owner(text, &curl_free);
  return std::string(text);
}

constexpr std::string_view kBlanks = " \t";

struct Link {
  std::string target;
  std::optional<std::string> relations;  ///< value of the first `rel` parameter
};

/// Parses the links of a Link header field one by one.
class LinkReader {
 public:
  explicit LinkReader(std::string_view field) : rest_(field) {}

  /// \return nullopt at the end of the field. \throws FormatError
  std::optional<Link> next() {
    while (skip(",")) {
    }
    if (rest_.empty()) return std::nullopt;
    expect('<');
    const auto end = rest_.find('>');
    if (end == rest_.npos) fail();
    Link link{std::string(rest_.substr(0, end)), std::nullopt};
    rest_.remove_prefix(end + 1);
    while (skip(";")) read_parameter(link);
    if (!rest_.empty() && rest_.front() != ',') fail();
    return link;
  }

 private:
  [[noreturn]] static void fail() { throw FormatError("is no list of links"); }

  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }

  /// Skips `separator` and the blanks around it. \return false when another character follows
  bool skip(std::string_view separator) {
    skip_blanks();
    if (!rest_.starts_with(separator)) return false;
    rest_.remove_prefix(separator.size());
    skip_blanks();
    return true;
  }

  void expect(char c) {
    if (rest_.empty() || rest_.front() != c) fail();
    rest_.remove_prefix(1);
  }

  /// Accepts more than RFC 8288 does: a token extends to the next blank, separator or quote.
  std::string take_token() {
    const auto end = std::min(rest_.find_first_of(" \t,;=\""), rest_.size());
    const auto token = std::string(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return token;
  }

  std::string take_quoted() {
    std::string text;
    for (expect('"'); !rest_.empty() && rest_.front() != '"'; rest_.remove_prefix(1)) {
      if (rest_.front() == '\\' && rest_.size() > 1) rest_.remove_prefix(1);
      text += rest_.front();
    }
    expect('"');
    return text;
  }

  void read_parameter(Link& link) {
    const auto name = ascii_lower(take_token());
    std::string value;
    if (skip("=")) value = !rest_.empty() && rest_.front() == '"' ? take_quoted() : take_token();
    if (name == "rel" && !link.relations) link.relations = ascii_lower(value);
  }

  std::string_view rest_;
};

bool has_relation(std::string_view relations, std::string_view wanted) {
  while (!relations.empty()) {
    relations.remove_prefix(std::min(relations.find_first_not_of(kBlanks), relations.size()));
    const auto one = relations.substr(0, relations.find_first_of(kBlanks));
    if (one == wanted) return true;
    relations.remove_prefix(one.size());
  }
  return false;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

HeaderList make_list(const std::vector<std::string>& headers) {
  HeaderList list;
  for (const auto& header : headers) {
    auto* longer = curl_slist_append(list.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    list.release();
    list.reset(longer);
  }
  return list;
}

struct Library {
  Library() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~Library() { curl_global_cleanup(); }
};

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// State of one request, passed to libcurl's callbacks.
struct Transfer {
  HttpSink& sink;
  const std::function<bool()>& stop;
  HttpHead head{};
  bool ended_by_sink = false;
  std::exception_ptr failure{};

  bool header_line(std::string_view line) {
    if (line.substr(0, 5) == "HTTP/") {
      head = {};
      const auto space = line.find(' ');
      if (space != std::string_view::npos) head.status = std::atoi(std::string(line.substr(space + 1)).c_str());
    } else if (trim(line).empty()) {
      return head.status < 200 || guarded([&] { return sink.head(head); });
    } else if (const auto colon = line.find(':'); colon != std::string_view::npos) {
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
      auto& value = head.headers[name];
      const auto text = std::string(trim(line.substr(colon + 1)));
      // A list of links may be split over several fields.
      value = name == "link" && !value.empty() ? value + ", " + text : text;
    }
    return true;
  }

  /// Stores an exception of `call`, because it must not propagate through libcurl's C code.
  template <typename Call>
  bool guarded(Call call) {
    try {
      if (call()) return true;
      ended_by_sink = true;
    } catch (...) {
      failure = std::current_exception();
    }
    return false;
  }
};

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  return static_cast<Transfer*>(user)->header_line({data, size * count}) ? size * count : 0;
}

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const auto bytes = std::as_bytes(std::span(data, size * count));
  return transfer.guarded([&] { return transfer.sink.body(bytes); }) ? bytes.size() : bytes.size() + 1;
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<Transfer*>(user);
  return transfer.stop && transfer.stop() ? 1 : 0;
}

bool permanent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string percent_encode(std::string_view text, std::string_view keep) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       keep.find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += "0123456789ABCDEF"[byte >> 4];
      out += "0123456789ABCDEF"[byte & 15];
    }
  }
  return out;
}

std::string url_origin(const std::string& url) {
  const auto handle = parse(url);
  const auto scheme = ascii_lower(part(handle, CURLUPART_SCHEME).value_or(""));
  if (scheme != "http" && scheme != "https") {
    throw IoError("\"" + loggable_url(url) + "\": only http and https are spoken");
  }
  return scheme + "://" + ascii_lower(part(handle, CURLUPART_HOST).value_or("")) + ":" +
         part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT).value_or("");
}

std::string resolve_url(const std::string& base, const std::string& reference) {
  const auto handle = parse(base);
  if (curl_url_set(handle.get(), CURLUPART_URL, reference.c_str(), 0) != CURLUE_OK) {
    throw IoError(loggable_url(base) + ": redirects to something that is not a URL");
  }
  return part(handle, CURLUPART_URL).value_or("");
}

std::string loggable_url(const std::string& url) {
  const auto handle = parse(url);
  for (const auto which : {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT}) {
    curl_url_set(handle.get(), which, nullptr, 0);
  }
  return part(handle, CURLUPART_URL).value_or("");
}

std::string_view url_credentials(std::string_view url) {
  const auto begin = url.find("://");
  if (begin == std::string_view::npos) return {};
  url.remove_prefix(begin + 3);
  const auto at = url.substr(0, url.find_first_of("/?#")).rfind('@');
  return at == std::string_view::npos ? std::string_view() : url.substr(0, at);
}

std::string url_host(const std::string& url) { return part(parse(url), CURLUPART_HOST).value_or(""); }

std::optional<std::string> next_link(std::string_view field) {
  LinkReader links(field);
  try {
    while (const auto link = links.next()) {
      if (link->relations && has_relation(*link->relations, "next")) return link->target;
    }
  } catch (const FormatError&) {
    if (ascii_lower(std::string(field)).find("next") != std::string::npos)
      throw FormatError(
          "the server's Link header is no list of links (RFC 8288), so where its listing goes on cannot "
          "be told");
  }
  return std::nullopt;
}

const std::string& HttpHead::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

std::string find_ca_bundle() {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  for (const char* path : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"}) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return {};
}

struct HttpClient::Curl {
  struct Free {
    void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  };
  std::function<bool()> stop;
  std::unique_ptr<CURL, Free> handle;
  std::array<char, CURL_ERROR_SIZE> reason{};
};

HttpClient::HttpClient(const HttpSettings& settings, std::function<bool()> stop) : curl_(std::make_unique<Curl>()) {
  static const Library library;
  curl_->stop = std::move(stop);
  curl_->handle.reset(curl_easy_init());
  auto* handle = curl_->handle.get();
  if (handle == nullptr) throw std::bad_alloc();
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(handle, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings.connect_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall_timeout.count()));
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 256L * 1024L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, settings.user_agent.c_str());
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, curl_->reason.data());
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  if (!settings.ca_bundle.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, settings.ca_bundle.c_str());
}

HttpClient::~HttpClient() = default;

HttpHead HttpClient::get(const std::string& url, const std::vector<std::string>& headers, HttpSink& sink) {
  url_origin(url);  // refuses schemes such as file://
  auto* handle = curl_->handle.get();
  const auto list = make_list(headers);
  Transfer transfer{sink, curl_->stop};
  curl_->reason[0] = '\0';
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, list.get());
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &transfer);
  const auto code = curl_easy_perform(handle);
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  if (code == CURLE_OK || transfer.ended_by_sink) return transfer.head;
  const std::string reason = curl_->reason[0] != '\0' ? curl_->reason.data() : curl_easy_strerror(code);
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    throw IoError(loggable_url(url) + ": " + reason + ". SSL_CERT_FILE names a file with the certificates to trust");
  }
  if (permanent(code)) throw IoError(loggable_url(url) + ": " + reason);
  throw TransferCut(reason);
}

}  // namespace fsdp
