// Answers of a hub, including header lines: a server on this machine sends the input to the real client.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <mutex>
#include <thread>

#include "fuzz_support.hpp"
#include "lib/hub/hub_client.hpp"

namespace {

/// Answers each connection's first request with the next part of the input (parts end with 0x00), and closes.
class Server {
 public:
  Server() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, plain, length) != 0 || ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, plain, &length) != 0) {
      throw std::runtime_error("no server on 127.0.0.1");
    }
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    // Proxies keep every request on this machine, whatever address an answer names.
    for (const char* name : {"http_proxy", "https_proxy", "all_proxy"}) ::setenv(name, url_.c_str(), 1);
    for (const char* name : {"no_proxy", "NO_PROXY"}) ::unsetenv(name);
    std::thread([this] { serve(); }).detach();
  }

  const std::string& url() const { return url_; }
  void set_answers(std::string_view answers) {
    const std::lock_guard lock(mutex_);
    rest_ = answers;
  }

 private:
  [[noreturn]] void serve() {
    while (true) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      char request[16384];
      std::string seen;
      while (seen.find("\r\n\r\n") == std::string::npos) {
        const auto count = ::recv(connection, request, sizeof(request), 0);
        if (count <= 0) break;
        seen.append(request, static_cast<std::size_t>(count));
      }
      const auto answer = next_answer();
      if (::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL) >= 0) ::shutdown(connection, SHUT_WR);
      while (::recv(connection, request, sizeof(request), 0) > 0) {
      }
      ::close(connection);
    }
  }

  std::string next_answer() {
    const std::lock_guard lock(mutex_);
    const auto answer = rest_.substr(0, rest_.find('\0'));
    rest_.erase(0, std::min(rest_.size(), answer.size() + 1));
    return answer;
  }

  int listener_;
  std::string url_;
  std::mutex mutex_;
  std::string rest_;
};

template <typename Ask>
void ask(Ask question) {
  try {
    question();
  } catch (const fsdp::Error&) {
  } catch (const fsdp::TransferCut&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fsdp;
  static Server& server = *new Server;  // its thread never ends
  HubSettings settings;
  settings.endpoint = server.url();
  settings.token = "hf_secret";
  settings.token_source = "HF_TOKEN";
  RetryPolicy once;
  once.attempts = 1;
  HubClient client(settings, once, {});
  const RepoId repo{RepoType::model, "owner/name"};
  server.set_answers(fuzz::as_text(data, size));
  ask([&] {
    const auto revision = client.resolve_revision(repo, "main");
    if (revision.commit.size() != 40) std::abort();
  });
  server.set_answers(fuzz::as_text(data, size));
  ask([&] {
    for (const auto& file : client.list_files(repo, std::string(40, 'a'))) check_remote_file(file);
  });
  return 0;
}
