// Stands for a program that loaded_programs.cpp starts: hands over its open files, passes signals on, and ends as the
// program does. FSDP_LOADED_PROGRAMS is the socket's path.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace {

volatile pid_t program = 0;

int call(const char* path) {
  const int connection = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::perror(path);
    std::exit(126);
  }
  return connection;
}

/// Sends the numbers of all open files, and the files.
void send_files(int connection, const std::vector<int>& files) {
  const auto size = files.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(size));
  iovec data{const_cast<int*>(files.data()), size};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(header), files.data(), size);
  if (::sendmsg(connection, &message, MSG_NOSIGNAL) < 0) std::exit(126);
}

}  // namespace

int main() {
  std::vector<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    files.push_back(std::stoi(entry.path().filename().string()));
  std::erase_if(files, [](int file) { return ::fcntl(file, F_GETFD) < 0; });  // the folder's own
  const int connection = call(std::getenv("FSDP_LOADED_PROGRAMS"));
  send_files(connection, files);
  pid_t started = 0;
  int status = 0;
  if (::recv(connection, &started, sizeof(started), MSG_WAITALL) != sizeof(started)) return 126;
  program = started;
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT})
    ::signal(number, [](int which) { ::kill(program, which); });  // restarts recv()
  if (::recv(connection, &status, sizeof(status), MSG_WAITALL) != sizeof(status)) return 126;
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const rlimit no_core{};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(WTERMSIG(status), SIG_DFL);
  ::raise(WTERMSIG(status));
}
