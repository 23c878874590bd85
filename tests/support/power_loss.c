/* LD_PRELOAD: records a program's operations on files below FSDP_POWER_ROOT, so that tests/cli/power_loss.py can
 * compute what a disk holds after a power failure at any moment. Appends one line per operation to FSDP_POWER_LOG:
 *
 *   create PATH | trunc PATH | mkdir PATH | rename OLD<TAB>NEW | exchange OLD<TAB>NEW | link OLD<TAB>NEW
 *   symlink TARGET<TAB>PATH | remove PATH | syncdir PATH | sync COPY<TAB>PATH
 *
 * Every fsync of a file also copies the file's present bytes to FSDP_POWER_LOG.COPY. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int real_open(const char* path, int flags, int mode) {
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* Resolves `path`, relative to the folder `at`, with links followed in its folder but not in its last component.
 * Returns 0 for paths outside of the root. */
static int located(int at, const char* path, char out[PATH_MAX]) {
  const char* root = getenv("FSDP_POWER_ROOT");
  char whole[PATH_MAX], folder[PATH_MAX];
  if (root == NULL || path == NULL) return 0;
  if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else {
    char base[PATH_MAX], link[64];
    if (at == AT_FDCWD) {
      if (getcwd(base, sizeof base) == NULL) return 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", at);
      const ssize_t length = readlink(link, base, sizeof base - 1);
      if (length < 0) return 0;
      base[length] = 0;
    }
    if (snprintf(whole, sizeof whole, "%s/%s", base, path) >= (int)sizeof whole) return 0;
  }
  size_t length = strlen(whole);
  while (length > 1 && whole[length - 1] == '/') whole[--length] = 0;
  char* slash = strrchr(whole, '/');
  *slash = 0;
  if (realpath(whole[0] ? whole : "/", folder) == NULL) return 0;
  if (snprintf(out, PATH_MAX, "%s/%s", folder, slash + 1) >= PATH_MAX) return 0;
  return strncmp(out, root, strlen(root)) == 0 && (out[strlen(root)] == '/' || out[strlen(root)] == 0);
}

static void put(const char* operation, const char* first, const char* second) {
  const int saved = errno;
  char line[3 * PATH_MAX];
  const int length = snprintf(line, sizeof line, second ? "%s %s\t%s\n" : "%s %s\n", operation, first, second);
  const int fd = real_open(getenv("FSDP_POWER_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0 || write(fd, line, (size_t)length) != length) abort();
  close(fd);
  errno = saved;
}

static void copy_of(int fd, const char* path) {
  static atomic_int number;
  char name[64], target[PATH_MAX], buffer[65536], link[64];
  snprintf(name, sizeof name, "%d-%d", (int)getpid(), atomic_fetch_add(&number, 1));
  snprintf(target, sizeof target, "%s.%s", getenv("FSDP_POWER_LOG"), name);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd); /* opened again, because `fd` may be write-only */
  const int in = real_open(link, O_RDONLY | O_CLOEXEC, 0), out = real_open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (in < 0 || out < 0) abort();
  for (ssize_t count; (count = read(in, buffer, sizeof buffer)) > 0;) {
    if (write(out, buffer, (size_t)count) != count) abort();
  }
  close(in);
  close(out);
  put("sync", name, path);
}

static int synced(int fd, int result) {
  char link[64], path[PATH_MAX], out[PATH_MAX];
  struct stat status;
  if (result != 0 || fstat(fd, &status) != 0) return result;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return result;
  path[length] = 0;
  const char* root = getenv("FSDP_POWER_ROOT");
  if (root != NULL && strcmp(path, root) == 0) {
    put("syncdir", path, NULL);
  } else if (located(AT_FDCWD, path, out)) {
    if (S_ISDIR(status.st_mode)) {
      put("syncdir", out, NULL);
    } else {
      copy_of(fd, out);
    }
  }
  return result;
}

int fsync(int fd) { return synced(fd, NEXT(fsync)(fd)); }
int fdatasync(int fd) { return synced(fd, NEXT(fdatasync)(fd)); }

static int opened(int at, const char* path, int flags, int mode) {
  char out[PATH_MAX];
  struct stat status;
  const int inside = (flags & (O_CREAT | O_TRUNC)) != 0 && (flags & O_TMPFILE) != O_TMPFILE && located(at, path, out);
  const int was_there = inside && lstat(out, &status) == 0;
  const int fd = (int)syscall(SYS_openat, at, path, flags, mode);
  if (fd < 0 || !inside) return fd;
  if (!was_there) {
    put("create", out, NULL);
  } else if ((flags & O_TRUNC) != 0 && realpath(path, out) != NULL) {
    put("trunc", out, NULL);
  }
  return fd;
}

#define OPEN(name)                                 \
  int name(const char* path, int flags, ...) {     \
    va_list list;                                  \
    va_start(list, flags);                         \
    const int mode = va_arg(list, int);            \
    va_end(list);                                  \
    return opened(AT_FDCWD, path, flags, mode);    \
  }
#define OPENAT(name)                                   \
  int name(int at, const char* path, int flags, ...) { \
    va_list list;                                      \
    va_start(list, flags);                             \
    const int mode = va_arg(list, int);                \
    va_end(list);                                      \
    return opened(at, path, flags, mode);              \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int __open_2(const char* path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char* path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int creat(const char* path, mode_t mode) {
  return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, (int)mode);
}

int renameat2(int old_at, const char* old_path, int new_at, const char* new_path, unsigned flags) {
  char from[PATH_MAX], to[PATH_MAX];
  const int inside = located(old_at, old_path, from) && located(new_at, new_path, to);
  const int result = (int)syscall(SYS_renameat2, old_at, old_path, new_at, new_path, flags);
  if (result == 0 && inside) put((flags & RENAME_EXCHANGE) != 0 ? "exchange" : "rename", from, to);
  return result;
}
int renameat(int old_at, const char* old_path, int new_at, const char* new_path) {
  return renameat2(old_at, old_path, new_at, new_path, 0);
}
int rename(const char* old_path, const char* new_path) {
  return renameat2(AT_FDCWD, old_path, AT_FDCWD, new_path, 0);
}

int linkat(int old_at, const char* old_path, int new_at, const char* new_path, int flags) {
  char from[PATH_MAX], to[PATH_MAX];
  const int inside = located(old_at, old_path, from) && located(new_at, new_path, to);
  const int result = (int)syscall(SYS_linkat, old_at, old_path, new_at, new_path, flags);
  if (result == 0 && inside) put("link", from, to);
  return result;
}
int link(const char* old_path, const char* new_path) { return linkat(AT_FDCWD, old_path, AT_FDCWD, new_path, 0); }

int symlinkat(const char* target, int at, const char* path) {
  char out[PATH_MAX];
  const int inside = located(at, path, out);
  const int result = (int)syscall(SYS_symlinkat, target, at, path);
  if (result == 0 && inside) put("symlink", target, out);
  return result;
}
int symlink(const char* target, const char* path) { return symlinkat(target, AT_FDCWD, path); }

int unlinkat(int at, const char* path, int flags) {
  char out[PATH_MAX];
  const int inside = located(at, path, out);
  const int result = (int)syscall(SYS_unlinkat, at, path, flags);
  if (result == 0 && inside) put("remove", out, NULL);
  return result;
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int at, const char* path, mode_t mode) {
  char out[PATH_MAX];
  const int result = (int)syscall(SYS_mkdirat, at, path, mode);
  if (result == 0 && located(at, path, out)) put("mkdir", out, NULL);
  return result;
}
int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
