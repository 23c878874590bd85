/* LD_PRELOAD: a bad link or network card under one rank. Each TEST_WRONG_EVERY-th (1) large all-gather of the rank
 * TEST_WRONG_RANK sends a copy of its numbers in which a bit is flipped: TEST_WRONG_TO is empty, or the size of the only
 * groups in which that happens. Handles of MPI are int or pointers: both pass through a long. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Gather)(const void*, int, long, void*, int, long, long, void*);
typedef int (*SizeOf)(long, int*);

static int find_mpi(struct dl_phdr_info* info, size_t size, void* found) {
  (void)size;
  if (strstr(info->dlpi_name, "/libmpi.so") == NULL && strstr(info->dlpi_name, "/libmpich.so") == NULL) return 0;
  *(void**)found = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  return 1;
}

static void* in_mpi(const char* name) {
  void* library = NULL;
  dl_iterate_phdr(find_mpi, &library);
  void* symbol = library == NULL ? NULL : dlsym(library, name);
  if (symbol == NULL) abort();
  return symbol;
}

int MPI_Iallgather(const void* in, int count, long type, void* out, int out_count, long out_type, long comm, void* request) {
  static int calls;
  const char *hydra = getenv("PMI_RANK"), *open_mpi = getenv("OMPI_COMM_WORLD_RANK"),
             *rank = hydra != NULL ? hydra : open_mpi, *wrong = getenv("TEST_WRONG_RANK"), *every = getenv("TEST_WRONG_EVERY"),
             *ranks = getenv("TEST_WRONG_TO");
  const Gather gather = (Gather)in_mpi("PMPI_Iallgather");
  if (rank != NULL && wrong != NULL && strcmp(rank, wrong) == 0 && count >= 512 && (long)in != -1) {
    int size = 0, width = 0;
    ((SizeOf)in_mpi("PMPI_Comm_size"))(comm, &size);
    ((SizeOf)in_mpi("PMPI_Type_size"))(type, &width);
    if ((ranks == NULL || atoi(ranks) == size) && ++calls % (every ? atoi(every) : 1) == 0) {
      char* copy = malloc((size_t)count * (size_t)width); /* the request outlives the call: never freed */
      memcpy(copy, in, (size_t)count * (size_t)width);
      copy[101] ^= 4;
      in = copy;
    }
  }
  return gather(in, count, type, out, out_count, out_type, comm, request);
}
