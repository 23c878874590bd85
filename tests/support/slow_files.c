/* LD_PRELOAD: a slow disk under one rank. Calls of the rank TEST_SLOW_RANK (not set: of any process) that read, write or
 * synchronize a file, or list a folder, whose path has TEST_SLOW_FILE in it take TEST_SLOW_MS milliseconds longer, after
 * the first TEST_SLOW_AFTER (0) of them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void slow_down(int fd) {
  const int saved = errno;
  const char *hydra = getenv("PMI_RANK"), *open_mpi = getenv("OMPI_COMM_WORLD_RANK"),
             *rank = hydra != NULL ? hydra : open_mpi, *slow = getenv("TEST_SLOW_RANK"), *file = getenv("TEST_SLOW_FILE"),
             *delay = getenv("TEST_SLOW_MS");
  char link[64], path[4096];
  const int is_slow = slow == NULL || (rank != NULL && strcmp(rank, slow) == 0);
  if (is_slow && file != NULL && delay != NULL) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
      path[length] = 0;
      const long ms = atol(delay);
      const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
      const char* after = getenv("TEST_SLOW_AFTER");
      static atomic_long calls;
      if (strstr(path, file) != NULL && calls++ >= (after ? atol(after) : 0)) nanosleep(&pause, NULL);
    }
  }
  errno = saved;
}

struct dirent* readdir(DIR* folder) {
  slow_down(dirfd(folder));
  return NEXT(readdir)(folder);
}
ssize_t read(int fd, void* to, size_t size) {
  slow_down(fd);
  return NEXT(read)(fd, to, size);
}
ssize_t pread(int fd, void* to, size_t size, off_t at) {
  slow_down(fd);
  return NEXT(pread)(fd, to, size, at);
}
ssize_t pread64(int fd, void* to, size_t size, off64_t at) {
  slow_down(fd);
  return NEXT(pread64)(fd, to, size, at);
}
ssize_t write(int fd, const void* from, size_t size) {
  slow_down(fd);
  return NEXT(write)(fd, from, size);
}
ssize_t pwrite(int fd, const void* from, size_t size, off_t at) {
  slow_down(fd);
  return NEXT(pwrite)(fd, from, size, at);
}
ssize_t pwrite64(int fd, const void* from, size_t size, off64_t at) {
  slow_down(fd);
  return NEXT(pwrite64)(fd, from, size, at);
}
int fsync(int fd) {
  slow_down(fd);
  return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
  slow_down(fd);
  return NEXT(fdatasync)(fd);
}
