// A stand-in for NCCL that exchanges through shared memory, for tests on machines without a GPU.
//
//     cc -O2 -shared -fPIC -o libnccl.so.2 nccl_stub.c -lpthread
//
// It takes device pointers for host pointers: the memory of a CUDA driver that is a stand-in itself, or host memory. A
// communicator works in a thread of its own, so calls do not block, and ncclCommGetAsyncError returns ncclInProgress until
// all that was begun has ended. Ranks may be threads or processes of one machine. What a collective is, how many elements
// it has, and of what type, must be the same on all ranks. Sums are made in rank order; halves are rounded at every step.
// A group of calls is a send to the next rank and a receive of as much from the rank before.
//
//   NCCL_STUB_LOG    a file to which each rank appends a line for each collective: rank, size, name, count, type
//   NCCL_STUB_FAULT  RANK:SIZE:NTH:WHAT makes a rank of each communicator of that size go wrong at its collective of that
//                    number, from 0: kill and stop send itself the signal, block never returns from the call, stall
//                    never ends it, error fails it, remote fails it as if another rank were gone

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { F16 = 6, F32 = 7, BF16 = 9 };
enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, SHIFT };
static const char *NAMES[] = {"all_reduce", "reduce_scatter", "all_gather", "shift"};

#define RANKS 64
#define BYTES (64 << 10) // of a rank, at once

typedef struct { char internal[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;

// What all ranks of a communicator share.
typedef struct {
  atomic_int arrived, round, gone;
  struct { int kind, type; size_t count; } of[RANKS];
  char bytes[RANKS][BYTES];
} Shared;

typedef struct Work { int kind, type; size_t count; const char *from; char *to; struct Work *next; } Work;

typedef struct {
  Shared *shared;
  int rank, size, begun, fault_at;
  const char *fault;
  atomic_int state, aborted;
  Work *first, *last;
  pthread_mutex_t lock;
  pthread_cond_t more;
  pthread_t thread;
  char error[200], name[128];
} Comm;

static void nap(void) { nanosleep(&(struct timespec){0, 20000}, NULL); }

// Waits for all ranks. Fails if this one was aborted, or another one has left.
static int meet(Comm *c) {
  Shared *s = c->shared;
  int round = atomic_load(&s->round);
  if (atomic_fetch_add(&s->arrived, 1) + 1 == c->size) {
    atomic_store(&s->arrived, 0);
    atomic_fetch_add(&s->round, 1);
    return SUCCESS;
  }
  for (int looks = 0; atomic_load(&s->round) == round; looks++) {
    if (atomic_load(&c->aborted)) return SYSTEM_ERROR;
    if (atomic_load(&s->gone)) return snprintf(c->error, sizeof c->error, "a rank has left"), REMOTE_ERROR;
    if (looks > 100) nap();
  }
  return SUCCESS;
}

static size_t width(int type) { return type == F32 ? 4 : 2; }

static float value(const char *at, int type) {
  if (type == F32) { float f; memcpy(&f, at, 4); return f; }
  if (type == F16) { _Float16 h; memcpy(&h, at, 2); return h; }
  uint16_t half; memcpy(&half, at, 2);
  uint32_t bits = (uint32_t)half << 16; float f; memcpy(&f, &bits, 4); return f;
}

static void put(char *at, float f, int type) {
  if (type == F32) memcpy(at, &f, 4);
  else if (type == F16) { _Float16 h = f; memcpy(at, &h, 2); }
  else {
    uint32_t bits; memcpy(&bits, &f, 4);
    uint16_t half = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    memcpy(at, &half, 2);
  }
}

// Writes the ranks' sum of `n` elements that begin at this byte of each rank's part.
static void sum(Comm *c, char *to, size_t start, size_t n, int type) {
  for (size_t i = 0, w = width(type); i < n; i++) {
    memcpy(to + i * w, c->shared->bytes[0] + start + i * w, w);
    for (int rank = 1; rank < c->size; rank++)
      put(to + i * w, value(to + i * w, type) + value(c->shared->bytes[rank] + start + i * w, type), type);
  }
}

static int collective(Comm *c, Work *work) {
  Shared *s = c->shared;
  size_t w = width(work->type), rows = work->kind == REDUCE_SCATTER ? c->size : 1, most = BYTES / w / rows;
  s->of[c->rank].kind = work->kind, s->of[c->rank].type = work->type, s->of[c->rank].count = work->count;
  int error = meet(c);
  for (int rank = 0; !error && rank < c->size; rank++)
    if (s->of[rank].kind != work->kind || s->of[rank].type != work->type || s->of[rank].count != work->count) {
      snprintf(c->error, sizeof c->error, "rank %d is in %s of %zu, type %d; rank %d in %s of %zu, type %d", c->rank,
               NAMES[work->kind], work->count, work->type, rank, NAMES[s->of[rank].kind], s->of[rank].count, s->of[rank].type);
      return INVALID_ARGUMENT;
    }
  for (size_t at = 0; !error && at < work->count; at += most) {
    size_t n = work->count - at < most ? work->count - at : most;
    for (size_t row = 0; row < rows; row++)
      memcpy(s->bytes[c->rank] + row * n * w, work->from + (row * work->count + at) * w, n * w);
    if ((error = meet(c))) break;
    if (work->kind == ALL_GATHER)
      for (int rank = 0; rank < c->size; rank++)
        memcpy(work->to + (rank * work->count + at) * w, s->bytes[rank], n * w);
    else if (work->kind == SHIFT)
      memcpy(work->to + at * w, s->bytes[(c->rank + c->size - 1) % c->size], n * w);
    else sum(c, work->to + at * w, work->kind == REDUCE_SCATTER ? c->rank * n * w : 0, n, work->type);
    error = meet(c);
  }
  return error;
}

static void *run(void *it) {
  Comm *c = it;
  int error = meet(c);
  if (c->rank == 0) shm_unlink(c->name); // All have opened it, or one never will.
  for (;;) {
    pthread_mutex_lock(&c->lock);
    if (!c->first || error) atomic_store(&c->state, error);
    while (!atomic_load(&c->aborted) && (error || !c->first)) pthread_cond_wait(&c->more, &c->lock);
    Work *work = c->first;
    pthread_mutex_unlock(&c->lock);
    if (atomic_load(&c->aborted)) return NULL;
    error = collective(c, work);
    pthread_mutex_lock(&c->lock);
    if (!(c->first = work->next)) c->last = NULL;
    pthread_mutex_unlock(&c->lock);
    free(work);
  }
}

static int begin(Comm *c, int kind, const void *from, void *to, size_t count, int type) {
  if (atomic_load(&c->state) != SUCCESS) return INVALID_ARGUMENT; // Also while another call is in progress.
  if (!from || !to || (type != F32 && type != F16 && type != BF16)) return INVALID_ARGUMENT;
  const char *log = getenv("NCCL_STUB_LOG");
  if (log) {
    int file = open(log, O_WRONLY | O_APPEND | O_CREAT, 0644);
    dprintf(file, "%d %d %s %zu %d\n", c->rank, c->size, NAMES[kind], count, type);
    close(file);
  }
  if (c->fault && c->begun == c->fault_at) {
    if (!strcmp(c->fault, "kill")) raise(SIGKILL);
    if (!strcmp(c->fault, "stop")) raise(SIGSTOP);
    if (!strcmp(c->fault, "block")) for (;;) pause();
    if (!strcmp(c->fault, "stall")) return atomic_store(&c->state, IN_PROGRESS), IN_PROGRESS;
    snprintf(c->error, sizeof c->error, "this error is part of a test");
    return !strcmp(c->fault, "remote") ? REMOTE_ERROR : INTERNAL_ERROR;
  }
  c->begun++;
  Work *work = malloc(sizeof *work);
  *work = (Work){kind, type, count, from, to, NULL};
  pthread_mutex_lock(&c->lock);
  atomic_store(&c->state, IN_PROGRESS);
  if (c->last) c->last->next = work; else c->first = work;
  c->last = work;
  pthread_cond_signal(&c->more);
  pthread_mutex_unlock(&c->lock);
  return IN_PROGRESS;
}

int ncclGetVersion(int *version) { *version = 23007; return SUCCESS; }
const char *ncclGetErrorString(int error) {
  return error == REMOTE_ERROR ? "remote process exited or there was a network error"
       : error == INVALID_ARGUMENT ? "invalid argument" : "internal error";
}
const char *ncclGetLastError(Comm *c) { return c ? c->error : ""; }

int ncclGetUniqueId(Id *id) {
  static atomic_int made;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/nccl-stub-%d-%d-%ld", getpid(), atomic_fetch_add(&made, 1), now.tv_nsec);
  return SUCCESS;
}

int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, Config *config) {
  if (config->magic != 0xcafebeef || config->version < 21400 || config->blocking || size > RANKS || rank >= size)
    return INVALID_ARGUMENT;
  int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared))) return SYSTEM_ERROR;
  Shared *shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shared == MAP_FAILED) return SYSTEM_ERROR;
  Comm *c = calloc(1, sizeof *c);
  c->shared = shared, c->rank = rank, c->size = size;
  memcpy(c->name, id.internal, sizeof c->name);
  char *fault = getenv("NCCL_STUB_FAULT"), *what = fault ? strrchr(fault, ':') : NULL;
  int faulty, of;
  if (what && sscanf(fault, "%d:%d:%d", &faulty, &of, &c->fault_at) == 3 && faulty == rank && of == size)
    c->fault = what + 1;
  atomic_store(&c->state, IN_PROGRESS);
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->more, NULL);
  *comm = c;
  return pthread_create(&c->thread, NULL, run, c) ? SYSTEM_ERROR : IN_PROGRESS;
}

int ncclCommGetAsyncError(Comm *c, int *error) { *error = atomic_load(&c->state); return SUCCESS; }

int ncclCommAbort(Comm *c) {
  pthread_mutex_lock(&c->lock);
  atomic_store(&c->aborted, 1);
  pthread_cond_signal(&c->more);
  pthread_mutex_unlock(&c->lock);
  pthread_join(c->thread, NULL);
  atomic_store(&c->shared->gone, 1);
  munmap(c->shared, sizeof(Shared));
  free(c);
  return SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *c, void *stream) {
  return (void)stream, op ? INVALID_ARGUMENT : begin(c, ALL_REDUCE, from, to, count, type);
}
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, Comm *c, void *stream) {
  return (void)stream, op ? INVALID_ARGUMENT : begin(c, REDUCE_SCATTER, from, to, count, type);
}
int ncclAllGather(const void *from, void *to, size_t count, int type, Comm *c, void *stream) {
  return (void)stream, begin(c, ALL_GATHER, from, to, count, type);
}

// The group of calls that this thread has begun.
static _Thread_local struct { int open, calls, type; Comm *comm; size_t count; const void *from; void *to; } group;

int ncclGroupStart(void) {
  if (group.open) return INVALID_ARGUMENT;
  memset(&group, 0, sizeof group);
  return group.open = 1, SUCCESS;
}
static int take(Comm *c, size_t count, int type, int is_neighbour) {
  if (!group.open || !is_neighbour || (group.calls && (group.comm != c || group.count != count || group.type != type)))
    return INVALID_ARGUMENT;
  return group.comm = c, group.count = count, group.type = type, group.calls++, SUCCESS;
}
int ncclSend(const void *from, size_t count, int type, int to, Comm *c, void *stream) {
  return (void)stream, group.from = from, take(c, count, type, to == (c->rank + 1) % c->size);
}
int ncclRecv(void *to, size_t count, int type, int from, Comm *c, void *stream) {
  return (void)stream, group.to = to, take(c, count, type, from == (c->rank + c->size - 1) % c->size);
}
int ncclGroupEnd(void) {
  if (!group.open || group.calls != 2) return group.open = 0, INVALID_ARGUMENT;
  return group.open = 0, begin(group.comm, SHIFT, group.from, group.to, group.count, group.type);
}
