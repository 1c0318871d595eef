/* Uses of memory that depend on the accounting of pages: for `everbyte run`.
 *
 * usage: memory_use CASE [NUMBER]
 *
 * Each case prints "good", except for `fill` and `overfill`. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void die(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

static char *map(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        die("mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

static sigjmp_buf landing;

static void land(int signal) {
    (void)signal;
    siglongjmp(landing, 1);
}

/* True if a load or a store at this address raises SIGSEGV. */
static int faults(volatile char *at, int is_store) {
    if (sigsetjmp(landing, 1))
        return 1;
    if (is_store)
        *at = 7;
    else
        (void)*at;
    return 0;
}

static void check_inaccessible(char *at, size_t bytes, const char *when) {
    for (size_t byte = 0; byte < bytes; byte += bytes / 16 - 1)
        if (!faults(at + byte, 1) || !faults(at + byte, 0))
            die("byte %zu is accessible after %s", byte, when);
}

static void check_zeroes(char *at, size_t bytes, const char *when) {
    for (size_t byte = 0; byte < bytes; byte++)
        if (at[byte])
            die("byte %zu of a new mapping is %d after %s", byte, at[byte], when);
}

static void unmap_and_map(void) {
    char *whole = map(16 * MIB);
    memset(whole, 1, 16 * MIB);
    munmap(whole, 16 * MIB);
    check_inaccessible(whole, 16 * MIB, "munmap");
    if (!mprotect(whole, 4096, PROT_READ | PROT_WRITE) || errno != ENOMEM)
        die("mprotect of unmapped memory: %s", strerror(errno));
    if (!mlock(whole, 4096) || errno != ENOMEM)
        die("mlock of unmapped memory: %s", strerror(errno));
    char *again = map(16 * MIB);
    check_zeroes(again, 16 * MIB, "munmap");
    memset(again, 2, 16 * MIB);
    munmap(again + 4 * MIB, 4 * MIB);
    check_inaccessible(again + 4 * MIB, 4 * MIB, "munmap of a part");
    if (mremap(again + 8 * MIB, 8 * MIB, 4 * MIB, 0) != again + 8 * MIB)
        die("mremap: %s", strerror(errno));
    check_inaccessible(again + 12 * MIB, 4 * MIB, "mremap to fewer bytes");
    char *fixed = mmap(again + 4 * MIB, 4 * MIB, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (fixed != again + 4 * MIB)
        die("mmap at an unmapped place: %s", strerror(errno));
    check_zeroes(fixed, 4 * MIB, "munmap of a part");
    if (again[0] != 2 || again[8 * MIB] != 2 || again[12 * MIB - 1] != 2)
        die("munmap changes other bytes");
    munmap(again, 12 * MIB);
    void *aligned;
    if (posix_memalign(&aligned, 64 * MIB, MIB))
        die("posix_memalign fails");
    memset(aligned, 3, MIB);
    free(aligned);
    char *small = map(4 * MIB);
    check_zeroes(small, 4 * MIB, "free of an aligned object");
    munmap(small, 4 * MIB);
}

static void in_child(void) {
    pid_t child = fork();
    if (child < 0)
        die("fork: %s", strerror(errno));
    if (!child) {
        unmap_and_map();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status)
        die("a child ends with status %d", status);
}

/* Unmapped memory is inaccessible, and new memory holds zeroes, before, in and after a fork. */
static void unmapped(void) {
    signal(SIGSEGV, land);
    unmap_and_map();
    in_child();
    unmap_and_map();
}

static volatile int ends;

/* Maps, fills, checks and unmaps memory, whose size differs each time. */
static void *map_in_turns(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    while (!ends) {
        size_t bytes = MIB + rand_r(&seed) % 16 * 65536;
        char *at = map(bytes);
        for (size_t byte = 0; byte < bytes; byte += 512)
            if (at[byte])
                die("byte %zu of a new mapping is %d", byte, at[byte]);
        memset(at, (int)(seed % 255 + 1), bytes);
        munmap(at, bytes);
    }
    return NULL;
}

/* Accesses memory at random while other threads unmap it. */
static void *disturb(void *at) {
    unsigned seed = 1;
    while (!ends)
        faults((char *)at + (size_t)rand_r(&seed) % (32 * MIB), 0);
    return NULL;
}

/* Loads from memory that other threads unmap at the same time reveal nothing and end nothing. */
static void unmapped_in_turns(void) {
    static pthread_t threads[4];
    signal(SIGSEGV, land);
    char *first = map(MIB);
    munmap(first, MIB);
    for (uintptr_t nth = 0; nth < 3; nth++)
        if (pthread_create(&threads[nth], NULL, map_in_turns, (void *)(nth + 1)))
            die("pthread_create fails");
    if (pthread_create(&threads[3], NULL, disturb, first))
        die("pthread_create fails");
    sleep(4);
    ends = 1;
    for (int nth = 0; nth < 4; nth++)
        pthread_join(threads[nth], NULL);
}

static pthread_barrier_t all_have;

static void *have_a_little(void *unused) {
    (void)unused;
    char *at = malloc(100);
    if (!at)
        die("malloc of 100 bytes: %s", strerror(errno));
    memset(at, 1, 100);
    pthread_barrier_wait(&all_have);
    for (int byte = 0; byte < 100; byte++)
        if (at[byte] != 1)
            die("a byte is %d", at[byte]);
    free(at);
    return NULL;
}

/* Threads with 100 bytes each, at the same time. */
static void threads(unsigned count) {
    pthread_t *all = calloc(count, sizeof *all);
    pthread_barrier_init(&all_have, NULL, count);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    for (unsigned nth = 0; nth < count; nth++) {
        int error = pthread_create(&all[nth], &attributes, have_a_little, NULL);
        if (error)
            die("pthread_create of thread %u: %s", nth, strerror(error));
    }
    for (unsigned nth = 0; nth < count; nth++)
        pthread_join(all[nth], NULL);
}

/* Allocates objects of `bytes` bytes until ENOMEM, writes each page, checks all of them, and prints
 * the sum of bytes. */
static void fill(size_t bytes) {
    struct object {
        struct object *next;
        uint64_t number;
    } *all = NULL;
    uint64_t count = 0;
    for (;;) {
        struct object *object = malloc(bytes);
        if (!object)
            break;
        count++;
        for (size_t byte = 0; byte + 16 < bytes; byte += 4096)
            memcpy((char *)object + byte, &count, 8);
        *object = (struct object){all, count};
        all = object;
    }
    if (errno != ENOMEM)
        die("malloc fails: %s", strerror(errno));
    uint64_t number = count;
    for (struct object *object = all; object; object = object->next) {
        for (size_t byte = 4096; byte + 16 < bytes; byte += 4096)
            if (memcmp((char *)object + byte, &number, 8))
                die("object %lu has a wrong byte", number);
        if (object->number != number)
            die("object %lu is wrong", number);
        number--;
    }
    printf("%zu\n", (size_t)(count * bytes));
}

#define OBJECTS 40000

struct tagged {
    size_t bytes;
    uint64_t tag;
};

static long refusals;

/* Allocates, checks and frees objects of random sizes. Frees some without memory. */
static void *churn_objects(void *number) {
    struct tagged **all = calloc(OBJECTS, sizeof *all);
    if (!all)
        die("calloc fails");
    unsigned seed = (unsigned)(uintptr_t)number;
    while (!ends) {
        struct tagged **place = &all[rand_r(&seed) % OBJECTS], *object = *place;
        if (object) {
            for (size_t byte = 4096; byte + 8 < object->bytes; byte += 4096)
                if (memcmp((char *)object + byte, &object->tag, 8))
                    die("byte %zu of an object is wrong", byte);
            if (rand_r(&seed) % 4 == 0) {
                free(object);
                *place = NULL;
            }
            continue;
        }
        size_t bytes = 64 + (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 8192 : 262144);
        object = malloc(bytes);
        if (!object) {
            __sync_fetch_and_add(&refusals, 1);
            for (int nth = 0; nth < 200; nth++) {
                place = &all[rand_r(&seed) % OBJECTS];
                free(*place);
                *place = NULL;
            }
            continue;
        }
        *object = (struct tagged){bytes, (uint64_t)rand_r(&seed) | 1};
        for (size_t byte = 4096; byte + 8 < bytes; byte += 4096)
            memcpy((char *)object + byte, &object->tag, 8);
        *place = object;
    }
    return NULL;
}

/* Threads that use all memory continue after a failed allocation. */
static void churn(unsigned count) {
    pthread_t all[16];
    for (unsigned nth = 0; nth < count; nth++)
        if (pthread_create(&all[nth], NULL, churn_objects, (void *)(uintptr_t)(nth + 1)))
            die("pthread_create fails");
    sleep(8);
    ends = 1;
    for (unsigned nth = 0; nth < count; nth++)
        pthread_join(all[nth], NULL);
    if (!refusals)
        die("no allocation failed");
}

/* Touches more memory than exists, granted before the touch. */
static void overfill(size_t bytes) {
    size_t count = bytes / (16 * MIB);
    char **parts = calloc(count, sizeof *parts);
    for (size_t nth = 0; nth < count; nth++)
        parts[nth] = map(16 * MIB);
    puts("granted");
    fflush(stdout);
    for (size_t nth = 0; nth < count; nth++)
        memset(parts[nth], 1, 16 * MIB);
    puts("touched");
}

/* Reserves memory, touches little of it, and prints how much. */
static void reserve(size_t bytes) {
    char *at = map(bytes);
    for (size_t byte = 0; byte < bytes; byte += MIB)
        at[byte] = 1;
    for (size_t byte = 0; byte < bytes; byte += MIB)
        if (at[byte] != 1 || at[byte + 4096])
            die("byte %zu is wrong", byte);
    sleep(1);
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    size_t number = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    if (!strcmp(name, "fill")) {
        fill(number);
        return 0;
    }
    if (!strcmp(name, "overfill")) {
        overfill(number * MIB);
        return 0;
    }
    if (!strcmp(name, "unmapped"))
        unmapped();
    else if (!strcmp(name, "unmapped_in_turns"))
        unmapped_in_turns();
    else if (!strcmp(name, "threads"))
        threads((unsigned)number);
    else if (!strcmp(name, "churn"))
        churn((unsigned)(number < 16 ? number : 16));
    else if (!strcmp(name, "reserve"))
        reserve(number * MIB);
    else
        die("usage: memory_use CASE [NUMBER]");
    puts("good");
}
