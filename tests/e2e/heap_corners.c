/* Rare uses of a heap, of mappings and of forks, each by its name: for `everbyte run`.
 *
 * usage: heap_corners CASE
 *
 * Prints "good" and exits with 0 if the case went as it would without. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pty.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())

#define MIB ((size_t)1 << 20)
/* Advice of Linux 6.13, which headers may not have. */
#define GUARD_INSTALL 102

static char *map(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

/* Has a child do something, which must end well and soon. */
static void in_child(void (*work)(void), const char *what) {
    int status;
    pid_t pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0) {
        alarm(20);
        work();
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || status)
        die("%s: status %x", what, status);
}

static volatile int is_over;

static void start(void *(*run)(void *), int threads) {
    pthread_t thread;
    for (int nth = 0; nth < threads; nth++)
        if (pthread_create(&thread, NULL, run, NULL))
            die("pthread_create failed");
}

/* Objects smaller than their alignment. */
static void small_aligned(void) {
    for (int nth = 0; nth < 3000; nth++) {
        size_t bytes = nth % 18;
        void *at[3] = {NULL, aligned_alloc(16, bytes), memalign(16, bytes)};
        if (posix_memalign(&at[0], 16, bytes))
            die("posix_memalign failed");
        for (int way = 0; way < 3; way++) {
            if (!at[way] || (uintptr_t)at[way] % 16)
                die("%zu bytes aligned to 16 are at %p", bytes, at[way]);
            memset(at[way], nth, bytes);
        }
        /* Most stay, so that places of both kinds are met. */
        free(at[nth % 3]);
    }
}

/* Alignments that no arena has, again and again: what is freed is there for the next one. */
static void large_aligned(void) {
    for (int nth = 0; nth < 60; nth++) {
        size_t align = (size_t)16 << 20 << nth % 4, bytes = nth % 5 << 20 | 100;
        char *at, *more;
        if (posix_memalign((void **)&at, align, bytes))
            die("%zu bytes aligned to %zu are refused", bytes, align);
        if ((uintptr_t)at % align || malloc_usable_size(at) < bytes)
            die("%zu of %zu bytes aligned to %zu at %p", malloc_usable_size(at), bytes, align, at);
        memset(at, 1 + nth, bytes);
        more = nth % 2 ? realloc(at, bytes * 2) : at;
        if (!more || more[0] != 1 + nth || more[bytes - 1] != 1 + nth)
            die("%zu bytes aligned to %zu are not what they were", bytes, align);
        free(more);
    }
    if (malloc_usable_size(memset(malloc(100), 1, 100)) < 100)
        die("malloc fails afterwards");
}

static void use_heap(void) {
    for (int nth = 0; nth < 4; nth++) {
        char *mapped = map(2 * MIB), *allocated = malloc(3 * MIB);
        if (!allocated || mapped[MIB])
            die("a child has no heap");
        mapped[MIB] = 1;
        memset(allocated, 1, 100);
        free(allocated);
        munmap(mapped, 2 * MIB);
    }
}

static void *use_heap_always(void *nothing) {
    while (!is_over)
        use_heap();
    return nothing;
}

/* A child with threads of its own forks, too. */
static void fork_with_threads(void) {
    start(use_heap_always, 2);
    for (int nth = 0; nth < 100; nth++)
        in_child(use_heap, "grandchild");
    is_over = 1;
}

/* Forks that are the C library's own. */
static void fork_by_library(void) {
    char *stored = map(40 * MIB);
    int terminal, status;
    memset(stored, 7, 40 * MIB);
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid < 0)
        die("forkpty: %s", strerror(errno));
    if (pid == 0) {
        for (size_t at = 0; at < 40 * MIB; at += 4096)
            if (stored[at] != 7)
                _exit(1);
        use_heap();
        fork_with_threads();
        _exit(0);
    }
    use_heap();
    if (waitpid(pid, &status, 0) != pid || status)
        die("child of forkpty: status %x", status);
    munmap(stored, 40 * MIB);
}

static void forks(void) {
    fork_by_library();
    in_child(fork_with_threads, "child");
    fork_with_threads();
}

/* An allocator's lock, which it holds while it maps memory, and across forks. */
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER, *the_lock = &own_lock;

static void take_lock(void) { pthread_mutex_lock(the_lock); }

static void give_lock(void) { pthread_mutex_unlock(the_lock); }

static void map_under_lock(void) {
    take_lock();
    char *at = map(2 * MIB);
    at[MIB] = 1;
    munmap(at, 2 * MIB);
    give_lock();
}

static void *map_under_lock_always(void *nothing) {
    while (!is_over) {
        map_under_lock();
        usleep(20);
    }
    return nothing;
}

static void *fork_always(void *nothing) {
    while (!is_over) {
        in_child(map_under_lock, "child of another thread");
        usleep(20);
    }
    return nothing;
}

/* early_fork.c has a lock that is held across forks before anything else is. */
static void fork_handlers(void) {
    pthread_mutex_t *early = dlsym(RTLD_DEFAULT, "early_lock");
    char *stored = map(40 * MIB);
    if (early)
        the_lock = early;
    else if (pthread_atfork(take_lock, give_lock, give_lock))
        die("pthread_atfork failed");
    alarm(50);
    start(map_under_lock_always, 2);
    start(fork_always, 1);
    for (int nth = 0; nth < 40; nth++) {
        memset(stored, nth, 40 * MIB);
        in_child(map_under_lock, "child");
        for (size_t at = 0; at < 40 * MIB; at += 4096)
            if (stored[at] != nth)
                die("byte %zu is not what it was", at);
    }
    is_over = 1;
    take_lock();
}

static char *looked_at;
static pthread_t interrupted;

static void look(int signal) {
    static size_t next;
    looked_at[(next += 7 * 4096 + signal) % (40 * MIB)]++;
    munmap(map(MIB), MIB);
}

static void *interrupt(void *nothing) {
    while (!is_over) {
        pthread_kill(interrupted, SIGUSR1);
        usleep(20);
    }
    return nothing;
}

/* The handler of a signal touches what its own thread moves, and maps. */
static void signals(void) {
    interrupted = pthread_self();
    looked_at = map(40 * MIB);
    memset(looked_at, 1, 40 * MIB);
    signal(SIGUSR1, look);
    start(interrupt, 1);
    for (int nth = 0; nth < 2000; nth++) {
        char *part = looked_at + nth * 5 * 4096 % (40 * MIB - 32 * 4096);
        if (madvise(part, 32 * 4096, MADV_DONTNEED))
            die("madvise: %s", strerror(errno));
        memset(part, 1, 32 * 4096);
        munmap(map(2 * MIB), 2 * MIB);
    }
    for (int nth = 0; nth < 20; nth++)
        in_child(use_heap, "child");
    is_over = 1;
}

static void lock(char *at, size_t bytes) {
    if (mlock(at, bytes))
        die("mlock of %zu bytes: %s", bytes, strerror(errno));
}

/* Three quarters of 16 MiB can be locked: memory that is given up is not, and locks do not nest. */
static void locks(void) {
    char *at;
    for (int nth = 0; nth < 20; nth++) {
        lock(at = map(8 * MIB), 8 * MIB);
        munmap(at, 8 * MIB);
        lock(at = map(8 * MIB), 8 * MIB);
        if (mremap(at, 8 * MIB, 2 * MIB, 0) != at)
            die("mremap: %s", strerror(errno));
        if (mmap(at, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
            die("mmap over a mapping: %s", strerror(errno));
        at = map(8 * MIB);
        lock(at, 6 * MIB);
        lock(at + 2 * MIB, 6 * MIB);
        lock(at, 8 * MIB);
        memset(at, 1, 8 * MIB);
        munlock(at + MIB, MIB);
        munlock(at, 8 * MIB);
        munlock(at, 8 * MIB);
    }
    for (int nth = 0; nth < 20; nth++) {
        at = map(12 * MIB);
        if (mlock2(at, 12 * MIB, nth % 2 ? MLOCK_ONFAULT : 0))
            die("mlock2 of 12 MiB: %s", strerror(errno));
        memset(at, 1, 12 * MIB);
        munmap(at, 12 * MIB);
    }
    for (int nth = 0; nth < 20; nth++) {
        lock(map(4 * MIB), 4 * MIB);
        lock(at = map(8 * MIB), 8 * MIB);
        if (munlockall())
            die("munlockall: %s", strerror(errno));
        memset(at, 1, 8 * MIB);
    }
    lock(at = map(12 * MIB), 12 * MIB);
    if (!mlock(map(2 * MIB), 2 * MIB) || !mlock2(map(2 * MIB), 2 * MIB, MLOCK_ONFAULT))
        die("more is locked than can be");
    if (!mlock2(at, 4096, 64) || errno != EINVAL)
        die("mlock2 takes flags that there are not");
}

static void is_locked(char *at, size_t bytes) {
    if (!madvise(at, 4096, MADV_DONTNEED) || !madvise(at + bytes - 4096, 4096, MADV_DONTNEED))
        die("%zu bytes are not locked", bytes);
}

/* What is made longer stays locked, with what is added, there or elsewhere. */
static void locks_of_longer(void) {
    char *at = map(12 * MIB);
    munmap(at + 4 * MIB, 4 * MIB);
    memset(at, 1, 4 * MIB);
    lock(at, 4 * MIB);
    if (mremap(at, 4 * MIB, 8 * MIB, 0) != at)
        die("mremap: %s", strerror(errno));
    is_locked(at, 8 * MIB);
    at = mremap(at, 8 * MIB, 9 * MIB, MREMAP_MAYMOVE);
    if (at == MAP_FAILED)
        die("mremap elsewhere: %s", strerror(errno));
    is_locked(at, 9 * MIB);
    if (mremap(at, 9 * MIB, 13 * MIB, MREMAP_MAYMOVE) != MAP_FAILED || errno != EAGAIN)
        die("more is locked than can be: %s", strerror(errno));
    is_locked(at, 9 * MIB);
    if (at[0] != 1 || at[4 * MIB - 1] != 1 || at[9 * MIB - 1])
        die("a byte is not what it was");
    munmap(at, 9 * MIB);
    lock(map(12 * MIB), 12 * MIB);
}

/* What is freed while it is locked cannot be given up later, of which `free` says nothing. */
static void free_of_locked(void) {
    char *parts[8];
    for (int nth = 0; nth < 8; nth++)
        if (!(parts[nth] = malloc(MIB)))
            die("malloc: %s", strerror(errno));
    for (int nth = 0; nth < 8; nth += 2) {
        lock(parts[nth], MIB);
        free(parts[nth]);
    }
    usleep(500000);
    for (int nth = 1; nth < 8; nth += 2) {
        errno = EDOM;
        free(parts[nth]);
        if (errno != EDOM)
            die("free changes errno: %s", strerror(errno));
    }
}

static long locked_kib(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status)
        die("/proc/self/status: %s", strerror(errno));
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmLck: %ld", &kib);
    fclose(status);
    return kib;
}

/* Small mappings are the kernel's. What begins within a page ends where it ends. */
static void locks_elsewhere(void) {
    char *at = map(2 * 4096);
    long before = locked_kib();
    lock(at + 100, 4096 - 100);
    if (locked_kib() != before + 4)
        die("mlock of a page locks %ld KiB", locked_kib() - before);
    lock(at, 2 * 4096);
    if (munlock(at + 100, 4096 - 100) || locked_kib() != before + 4)
        die("munlock of one page of two leaves %ld KiB", locked_kib() - before);
    munlock(at, 2 * 4096);
    if (mlock2(at + 100, 4096 - 100, 0) || locked_kib() != before + 4)
        die("mlock2 of a page locks %ld KiB", locked_kib() - before);
}

static char variables[4 * MIB];

/* Where the mapping begins in which an address lies. */
static char *mapping_of(const char *at) {
    char line[512];
    uintptr_t found = 0;
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        die("/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (uintptr_t)at && (uintptr_t)at < end)
            found = start;
    fclose(maps);
    return (char *)found;
}

/* With `--bss` the pages of a variable before a multiple of 64 KiB are the kernel's, and those behind it the heap's. As a
 * rule there are some of both. */
static void variable_in_part(void) {
    char *at = mapping_of(variables + 2 * MIB) - 4096;
    memset(variables, 1, sizeof variables);
    if (at < variables)
        return;
    long before = locked_kib();
    lock(at, 2 * 4096);
    if (locked_kib() != before + 4)
        die("mlock of a page on each side locks %ld KiB of the kernel's", locked_kib() - before);
    if (munlock(at, 2 * 4096) || locked_kib() != before)
        die("munlock of a page on each side leaves %ld KiB", locked_kib() - before);
    if (madvise(at, 2 * 4096, MADV_DONTNEED))
        die("madvise of a page on each side: %s", strerror(errno));
    for (size_t byte = 0; byte < 2 * 4096; byte++)
        if (at[byte])
            die("byte %zu was given up and is not zero", byte);
}

/* Pages amid others that may be read alone, and pages that were such before they were unmapped. */
static void protected(void) {
    char *at = map(48 * MIB);
    for (size_t nth = 0; nth < 48 * MIB / 4096; nth++)
        at[nth * 4096] = 1 + nth % 100;
    for (size_t nth = 5; nth < 48 * MIB / 4096; nth += 61)
        if (mprotect(at + nth * 4096, 4096, PROT_READ))
            die("mprotect: %s", strerror(errno));
    for (int round = 0; round < 3; round++)
        for (size_t nth = 0; nth < 48 * MIB / 4096; nth++) {
            if (at[nth * 4096] != (char)(1 + nth % 100))
                die("page %zu is not what it was", nth);
            if (nth % 61 != 5)
                at[nth * 4096 + 1]++;
        }
    munmap(at, 48 * MIB);
    memset(map(48 * MIB), 1, 48 * MIB);
}

static __thread int is_inside;

static void check_place(void *nothing) {
    (void)nothing;
    if (is_inside)
        die("a thread is cancelled within a call about memory");
}

/* It is to be cancelled from the beginning, which acts where it says so: none of these calls is such a place. */
static void *use_heap_to_the_end(void *nothing) {
    pthread_cleanup_push(check_place, NULL);
    is_inside = 1;
    pthread_cancel(pthread_self());
    for (int nth = 0; nth < 10; nth++) {
        char *mapped = map(4 * MIB), *allocated = malloc(3 * MIB);
        memset(mapped, 1, 4 * MIB);
        memset(allocated, 1, 3 * MIB);
        if (madvise(mapped, 2 * MIB, MADV_DONTNEED) || mlock(mapped, 4096))
            die("madvise or mlock: %s", strerror(errno));
        if (mremap(mapped, 4 * MIB, 2 * MIB, 0) != mapped)
            die("mremap: %s", strerror(errno));
        munmap(mapped, 2 * MIB);
        free(allocated);
    }
    is_inside = 0;
    pthread_testcancel();
    die("a thread is not cancelled");
    pthread_cleanup_pop(0);
    return nothing;
}

static void cancellation(void) {
    pthread_t threads[4];
    void *result;
    alarm(50);
    for (int round = 0; round < 20; round++) {
        for (int nth = 0; nth < 4; nth++)
            if (pthread_create(&threads[nth], NULL, use_heap_to_the_end, NULL))
                die("pthread_create failed");
        for (int nth = 0; nth < 4; nth++)
            if (pthread_join(threads[nth], &result) || result != PTHREAD_CANCELED)
                die("a thread ended otherwise");
    }
    use_heap();
}

/* What may be written may be read, and what is locked is not given up. */
static void write_only(void) {
    char *at = map(8 * MIB);
    memset(at, 1, 8 * MIB);
    if (mprotect(at, 8 * MIB, PROT_READ) || mprotect(at, 8 * MIB, PROT_WRITE))
        die("mprotect: %s", strerror(errno));
    for (size_t nth = 0; nth < 8 * MIB / 4096; nth++)
        if (++at[nth * 4096] != 2 || at[nth * 4096 + 1] != 1)
            die("page %zu is not what it was", nth);
    munmap(at, 8 * MIB);
}

static void access_rights(void) {
    char *at = map(8 * MIB);
    memset(at, 1, 8 * MIB);
    lock(at, MIB);
    if (mprotect(at, 8 * MIB, PROT_READ))
        die("mprotect: %s", strerror(errno));
    for (int nth = 0; nth < 2; nth++)
        if (!madvise(at, 2 * MIB, nth ? MADV_FREE : MADV_DONTNEED) || errno != EINVAL)
            die("madvise of locked memory: %s", strerror(errno));
    for (size_t byte = 0; byte < 8 * MIB; byte++)
        if (at[byte] != 1)
            die("byte %zu is not what it was", byte);
    munlock(at, MIB);
    if (madvise(at, 2 * MIB, MADV_DONTNEED))
        die("madvise: %s", strerror(errno));
    for (size_t byte = 0; byte < 8 * MIB; byte++)
        if (at[byte] != (byte >= 2 * MIB))
            die("byte %zu is not what it should be", byte);
    munmap(at, 8 * MIB);
    write_only();
    in_child(write_only, "child");
}

/* Enough is free, but nowhere in one piece. */
static void fragmented(void) {
    static char *parts[600];
    for (int nth = 0; nth < 600; nth++)
        parts[nth] = map(MIB);
    for (int nth = 0; nth < 600; nth += 2)
        munmap(parts[nth], MIB);
    void *at = mmap(NULL, 250 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED || errno != ENOMEM)
        die("250 MiB are at %p", at);
    map(MIB);
}

static char *map_at(char *at, size_t bytes, int flags) {
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0);
}

/* A place that was given up and is asked for again has one owner, whatever is mapped afterwards. */
static void take_again(void) {
    char *more[8], *at = map(4 * MIB);
    memset(at, 1, 4 * MIB);
    munmap(at, 4 * MIB);
    /* Half of it is there already the second time. */
    for (size_t bytes = 2 * MIB; bytes <= 4 * MIB; bytes += 2 * MIB) {
        if (map_at(at, bytes, MAP_PRIVATE) != at)
            die("mmap of %zu bytes at a free place: %s", bytes, strerror(errno));
        for (size_t byte = 0; byte < bytes; byte++)
            if (at[byte])
                die("byte %zu of new memory is not zero", byte);
        memset(at, 2, bytes);
    }
    for (int nth = 0; nth < 8; nth++) {
        more[nth] = map(4 * MIB);
        if (more[nth] < at + 4 * MIB && at < more[nth] + 4 * MIB)
            die("two mappings overlap at %p and %p", (void *)at, (void *)more[nth]);
        memset(more[nth], 3, 4 * MIB);
    }
    for (size_t byte = 0; byte < 4 * MIB; byte++)
        if (at[byte] != 2)
            die("byte %zu is not what it was", byte);
    for (int nth = 0; nth < 8; nth++)
        munmap(more[nth], 4 * MIB);
    munmap(at, 4 * MIB);
}

/* A mapping in the place of another has the access that is asked for. */
static void fixed_access(void) {
    int ends[2];
    char *at = map(4 * MIB);
    memset(at, 1, 4 * MIB);
    if (pipe(ends) || write(ends[1], "x", 1) != 1)
        die("a pipe: %s", strerror(errno));
    if (mmap(at, 4096, PROT_READ, MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED, -1, 0) != at || at[0])
        die("a mapping that may be read: %s", strerror(errno));
    if (read(ends[0], at, 1) >= 0 || errno != EFAULT)
        die("a mapping that may be read can be stored to");
    if (map_at(at, 4096, MAP_PRIVATE) != at || read(ends[0], at, 1) != 1 || at[0] != 'x' || at[4096] != 1)
        die("a mapping in its place cannot be stored to: %s", strerror(errno));
    close(ends[0]);
    close(ends[1]);
    munmap(at, 4 * MIB);
}

static void fixed(void) {
    char *at = map(4 * MIB);
    memset(at, 1, 4 * MIB);
    if (map_at(at + 100, 4096, MAP_PRIVATE) != MAP_FAILED || errno != EINVAL)
        die("mmap at no page's address: %s", strerror(errno));
    if (map_at(at, 4096, MAP_SHARED) != MAP_FAILED || errno != EINVAL)
        die("a shared mapping in the heap: %s", strerror(errno));
    if (mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED ||
        errno != EEXIST)
        die("a mapping that is to replace nothing: %s", strerror(errno));
    if (mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1, 0) != MAP_FAILED || errno != EINVAL)
        die("a mapping that is neither private nor shared: %s", strerror(errno));
    /* A length that reaches beyond the heap names what is not this mapping's. */
    if (mremap(at, MIB << 20, 4096, 0) != MAP_FAILED || errno != EFAULT)
        die("mremap of what is not there: %s", strerror(errno));
    if (!madvise(at, 4096, GUARD_INSTALL) || errno != EINVAL)
        die("a guard that does not guard is installed");
    if (!madvise(at, 4096, 9999) || errno != EINVAL || madvise(at, 4096, MADV_WILLNEED))
        die("advice that there is not, or that there is: %s", strerror(errno));
    if (at[0] != 1 || at[4096] != 1)
        die("a mapping that is refused changes something");
    munmap(at, 4 * MIB);
    take_again();
    in_child(take_again, "child");
    take_again();
    fixed_access();
    in_child(fixed_access, "child");
}

/* More than there will ever be is refused, or left to the kernel; what is less goes on. */
static void beyond(void) {
    size_t bytes = (size_t)1 << 40;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS, access = PROT_READ | PROT_WRITE;
    void *volatile at = malloc(bytes);
    if (at || mmap(NULL, bytes, access, flags, -1, 0) != MAP_FAILED || errno != ENOMEM)
        die("a heap of %zu bytes: %s", bytes, strerror(errno));
    if (!posix_memalign((void **)&at, 64 * MIB, bytes))
        die("an aligned heap of %zu bytes", bytes);
    if (mmap(NULL, -(size_t)4096, access, flags | MAP_NORESERVE, -1, 0) != MAP_FAILED)
        die("all addresses are mapped");
    use_heap();
}

/* It is told that there is no place for so much. */
static void hear(void) {
    int nowhere = open("/dev/null", O_WRONLY);
    if (dup2(nowhere, 2) < 0)
        die("dup2: %s", strerror(errno));
    if (mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        die("all addresses are mapped");
}

/* A child hears what it is told although another thread was telling something when it was forked: that of `--stats`,
 * which waits for room in a pipe. */
static void told_meanwhile(void) {
    static const char bytes[4096];
    int ends[2], before = dup(2);
    if (before < 0 || pipe(ends) || dup2(ends[1], 2) < 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK))
        die("a pipe: %s", strerror(errno));
    while (write(ends[1], bytes, sizeof bytes) > 0) {
    }
    fcntl(ends[1], F_SETFL, 0);
    usleep(2500000);
    in_child(hear, "a child that is told something");
    dup2(before, 2);
    close(ends[0]);
}

/* That nobody reads what is told, also at the end, ends nothing. */
static void unheard(void) {
    int ends[2];
    if (pipe(ends) || dup2(ends[1], 2) < 0 || close(ends[0]))
        die("a pipe: %s", strerror(errno));
    if (mmap(NULL, MIB << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        die("all addresses are mapped");
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"small_aligned", small_aligned},
    {"forks", forks},
    {"fork_handlers", fork_handlers},
    {"signals", signals},
    {"locks", locks},
    {"locks_elsewhere", locks_elsewhere},
    {"locks_of_longer", locks_of_longer},
    {"free_of_locked", free_of_locked},
    {"protected", protected},
    {"variable_in_part", variable_in_part},
    {"access_rights", access_rights},
    {"fragmented", fragmented},
    {"fixed", fixed},
    {"cancellation", cancellation},
    {"large_aligned", large_aligned},
    {"beyond", beyond},
    {"told_meanwhile", told_meanwhile},
    {"unheard", unheard},
};

int main(int count, char **arguments) {
    for (size_t nth = 0; nth < sizeof CASES / sizeof *CASES; nth++)
        if (count == 2 && !strcmp(arguments[1], CASES[nth].name)) {
            CASES[nth].run();
            puts("good");
            return 0;
        }
    die("usage: heap_corners CASE");
}
