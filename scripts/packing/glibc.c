// libfsdp_glibc.so: what the packed programs and libraries take from a C library newer than 2.28 and an older one
// lacks. scripts/dist compiles it for the tarball; glibc.py, which lists what is needed, directs the files to it.
//
// Where the machine's own C library has the better function, that one is called. Names are given to the functions by
// assembler labels, because the headers of the compiling machine may or may not declare them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif

#define PROVIDED(name) __asm__(name) __attribute__((visibility("default")))
#define OLD(function, name) __asm__(".symver " #function ", " name "@" OLDEST)

// --- functions of the machine's C library, if it has them ------------------------------------------------------------
struct Found {  // struct dl_find_object of dlfcn.h
  unsigned long long flags;
  void* begin;
  void* end;
  struct link_map* object;
  void* eh_frame;
  unsigned long long reserved[7];
};
static int (*newer_find_object)(void*, struct Found*);
static int (*newer_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

__attribute__((constructor)) static void look_for_newer(void) {
  *(void**)&newer_find_object = dlsym(RTLD_NEXT, "_dl_find_object");
  *(void**)&newer_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
}

// --- 2.34: the C library itself runs the program's constructors; an older one calls a function for it ----------------
typedef void (*Constructor)(int, char**, char**);
int old_start(int (*)(int, char**, char**), int, char**, Constructor, void (*)(void), void (*)(void), void*);
OLD(old_start, "__libc_start_main");

static void run_constructors(int argc, char** argv, char** environment) {
  const struct link_map* program = _r_debug.r_map;
  const Constructor* array = NULL;
  size_t bytes = 0;
  for (const ElfW(Dyn)* entry = program->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_INIT) ((Constructor)(program->l_addr + entry->d_un.d_ptr))(argc, argv, environment);
    if (entry->d_tag == DT_INIT_ARRAY) array = (const Constructor*)(program->l_addr + entry->d_un.d_ptr);
    if (entry->d_tag == DT_INIT_ARRAYSZ) bytes = entry->d_un.d_val;
  }
  for (size_t i = 0; i < bytes / sizeof(*array); ++i) array[i](argc, argv, environment);
}

int start(int (*)(int, char**, char**), int, char**, Constructor, void (*)(void), void (*)(void), void*)
    PROVIDED("__libc_start_main");
int start(int (*main)(int, char**, char**), int argc, char** argv, Constructor init, void (*fini)(void),
          void (*at_end)(void), void* stack) {
  return old_start(main, argc, argv, init != NULL ? init : run_constructors, fini, at_end, stack);
}

// --- 2.30 ------------------------------------------------------------------------------------------------------------
int clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*) PROVIDED("pthread_cond_clockwait");
int clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  if (newer_clockwait != NULL) return newer_clockwait(condition, mutex, clock, until);
  struct timespec now;
  struct timespec end;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &end) != 0) return EINVAL;
  end.tv_sec += until->tv_sec - now.tv_sec;
  end.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (end.tv_nsec < 0) {
    end.tv_nsec += 1000000000;
    --end.tv_sec;
  } else if (end.tv_nsec >= 1000000000) {
    end.tv_nsec -= 1000000000;
    ++end.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &end);
}

// --- 2.32: false: shared_ptr counts by atomic operations in programs with one thread, too ----------------------------
char single_threaded PROVIDED("__libc_single_threaded") = 0;

// --- 2.33: an older library has these in a part that is linked into programs. The kernel's struct is the same --------
struct stat;
#define STAT(function, name, folder, path, flags, parameters) \
  int function parameters PROVIDED(name);                     \
  int function parameters { return (int)syscall(SYS_newfstatat, folder, path, out, flags); }
STAT(stat_path, "stat", AT_FDCWD, path, 0, (const char* path, struct stat* out))
STAT(stat_path_64, "stat64", AT_FDCWD, path, 0, (const char* path, struct stat* out))
STAT(stat_link, "lstat", AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, (const char* path, struct stat* out))
STAT(stat_link_64, "lstat64", AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, (const char* path, struct stat* out))
STAT(stat_at, "fstatat", folder, path, flags, (int folder, const char* path, struct stat* out, int flags))
STAT(stat_at_64, "fstatat64", folder, path, flags, (int folder, const char* path, struct stat* out, int flags))
STAT(stat_open, "fstat", file, "", AT_EMPTY_PATH, (int file, struct stat* out))
STAT(stat_open_64, "fstat64", file, "", AT_EMPTY_PATH, (int file, struct stat* out))

// --- 2.34: SIGSTKSZ and MINSIGSTKSZ of headers ask for 250 and 249, for which an older one returns -1 ----------------
long __sysconf(int);
long configured(int) PROVIDED("sysconf");
long configured(int name) {
  const long value = __sysconf(name);
  return value == -1 && (name == 249 || name == 250) ? 65536 : value;  // AVX-512's registers take 3 KiB
}

// --- 2.34: names without underscores, for libldap and libkrb5 --------------------------------------------------------
int old_expand(const unsigned char*, const unsigned char*, const unsigned char*, char*, int);
int old_query(const char*, int, int, unsigned char*, int);
int old_nsearch(void*, const char*, int, int, unsigned char*, int);
OLD(old_expand, "__dn_expand");
OLD(old_query, "__res_query");
OLD(old_nsearch, "__res_nsearch");
int expand(const unsigned char*, const unsigned char*, const unsigned char*, char*, int) PROVIDED("dn_expand");
int expand(const unsigned char* message, const unsigned char* end, const unsigned char* from, char* to, int size) {
  return old_expand(message, end, from, to, size);
}
int query(const char*, int, int, unsigned char*, int) PROVIDED("res_query");
int query(const char* name, int kind, int type, unsigned char* answer, int size) {
  return old_query(name, kind, type, answer, size);
}
int nsearch(void*, const char*, int, int, unsigned char*, int) PROVIDED("res_nsearch");
int nsearch(void* state, const char* name, int kind, int type, unsigned char* answer, int size) {
  return old_nsearch(state, name, kind, type, answer, size);
}

// --- 2.35: finds the handlers of an exception, for libgcc ------------------------------------------------------------
struct Wanted {
  uintptr_t address;
  struct Found* found;
};
static int holds(struct dl_phdr_info* object, size_t size, void* data) {
  (void)size;
  const struct Wanted* wanted = data;
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  uintptr_t eh_frame = 0;
  int inside = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    const uintptr_t first = object->dlpi_addr + part->p_vaddr;
    const uintptr_t last = first + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) eh_frame = first;
    if (part->p_type != PT_LOAD) continue;
    if (first < begin) begin = first;
    if (last > end) end = last;
    if (first <= wanted->address && wanted->address < last) inside = 1;
  }
  if (!inside || eh_frame == 0) return 0;
  *wanted->found = (struct Found){.begin = (void*)begin, .end = (void*)end, .eh_frame = (void*)eh_frame};
  return 1;
}
int find_object(void*, struct Found*) PROVIDED("_dl_find_object");
int find_object(void* address, struct Found* found) {
  if (newer_find_object != NULL) return newer_find_object(address, found);
  struct Wanted wanted = {.address = (uintptr_t)address, .found = found};
  return dl_iterate_phdr(holds, &wanted) == 1 ? 0 : -1;
}

// --- 2.36: for std::random_device ------------------------------------------------------------------------------------
uint32_t random_number(void) PROVIDED("arc4random");
uint32_t random_number(void) {
  uint32_t value;
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
    if (errno != EINTR) abort();
  }
  return value;
}
