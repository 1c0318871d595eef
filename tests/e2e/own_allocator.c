/* A program with an allocator of its own, which holds its lock while it maps more: for `everbyte run`.
 *
 * usage: own_allocator MIB
 *
 * Whoever gives it memory must not call malloc meanwhile. Prints "good" if every word is as it was
 * written, by two threads. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK ((size_t)4 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *next, *end;

void *malloc(size_t bytes) {
    pthread_mutex_lock(&lock);
    bytes = ((bytes + 15) & ~(size_t)15) + 16;
    if ((size_t)(end - next) < bytes) {
        size_t len = bytes > CHUNK ? bytes : CHUNK;
        next = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
        if (next == MAP_FAILED)
            _exit(2);
        end = next + len;
    }
    char *at = next + 16;
    *(size_t *)next = bytes - 16;
    next += bytes;
    pthread_mutex_unlock(&lock);
    return at;
}

void free(void *at) { (void)at; }

void *calloc(size_t count, size_t each) { return malloc(count * each); }

void *realloc(void *at, size_t bytes) {
    void *new = malloc(bytes);
    if (at) {
        size_t had = *(size_t *)((char *)at - 16);
        memcpy(new, at, had < bytes ? had : bytes);
    }
    return new;
}

static size_t words;

static void *run(void *argument) {
    uint64_t seed = (uintptr_t)argument, bad = 0;
    uint64_t **all = malloc(words / 512 * sizeof *all);
    for (size_t nth = 0; nth < words / 512; nth++) {
        all[nth] = malloc(4096);
        for (size_t at = 0; at < 512; at++)
            all[nth][at] = seed + nth * 512 + at;
    }
    for (size_t nth = 0; nth < words / 512; nth++)
        for (size_t at = 0; at < 512; at++)
            bad += all[nth][at] != seed + nth * 512 + at;
    return (void *)(uintptr_t)bad;
}

int main(int count, char **arguments) {
    pthread_t other;
    void *bad;
    words = (size_t)(count > 1 ? atoi(arguments[1]) : 1) << 16;
    pthread_create(&other, NULL, run, (void *)1);
    int is_bad = run((void *)1000000007) != NULL;
    pthread_join(other, &bad);
    puts(is_bad || bad ? "bad" : "good");
    return 0;
}
