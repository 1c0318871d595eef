/* Rare uses of a heap, of mappings and of forks, each by its name: for `everbyte run`.
 *
 * usage: heap_corners CASE
 *
 * Prints "good" and exits with 0 if the case went as it would without. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())

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

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"small_aligned", small_aligned},
    {"large_aligned", large_aligned},
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
