/* A region from C: four times its DRAM limit with every byte checked, pins, advice, counters, direct mode, and
 * every argument that can be wrong. Says "good", or which line was not.
 *
 * usage: region STORE */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "everbyte_region.h"

#define MIB ((uint64_t)1 << 20)
#define BYTES (8 * MIB)
#define LIMIT (2 * MIB)
#define UNIT 4096
#define PART (2 * MIB)

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; the last error is: %s\n", __LINE__, #condition,          \
                    everbyte_error());                                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call fails with this status, and the words say this. */
#define FAILS(call, expected, words)                                                               \
    do {                                                                                           \
        EXPECT((call) == EVERBYTE_STATUS_##expected);                                              \
        EXPECT(strstr(everbyte_error(), words) != NULL);                                           \
    } while (0)
#define GOOD(call) EXPECT((call) == EVERBYTE_STATUS_OK)

static uint64_t value(uint64_t at) { return at * 0x9e3779b97f4a7c15u + 1; }

static void fill_and_check(uint8_t *bytes)
{
    for (uint64_t at = 0; at < BYTES; at += 8)
        memcpy(bytes + at, &(uint64_t){value(at)}, 8);
    for (uint64_t at = 0; at < BYTES; at += 8) {
        uint64_t found;
        memcpy(&found, bytes + at, 8);
        EXPECT(found == value(at));
    }
}

static void refused_spaces(const char *path)
{
    EverbyteSpace *space = (EverbyteSpace *)&space;
    EverbyteSpace *const before = space;
    FAILS(everbyte_space_create(NULL, BYTES, &space), NULL_ARGUMENT, "path is null");
    FAILS(everbyte_space_create(path, BYTES, NULL), NULL_ARGUMENT, "space is null");
    FAILS(everbyte_space_create("\xff", BYTES, &space), BAD_ARGUMENT, "UTF-8");
    FAILS(everbyte_space_create("/no/such/folder/file", BYTES, &space), SYSTEM, "/no/such");
    FAILS(everbyte_space_open("/no/such/file", &space), SYSTEM, "/no/such");
    FAILS(everbyte_space_borrow(NULL, "v", BYTES, &space), NULL_ARGUMENT, "pool is null");
    FAILS(everbyte_space_borrow(path, NULL, BYTES, &space), NULL_ARGUMENT, "volume is null");
    FAILS(everbyte_space_borrow(path, "v", 0, &space), BAD_ARGUMENT, "at least one byte");
    FAILS(everbyte_space_borrow(path, "v", BYTES, &space), SYSTEM, path);
    FAILS(everbyte_space_close(NULL), NULL_ARGUMENT, "space is null");
    EXPECT(space == before);
    EXPECT(access(path, F_OK) != 0);
    /* The output is asked for first, so no file was made for a space that nobody gets. */
    FAILS(everbyte_space_create(path, BYTES, (EverbyteSpace **)((char *)&space + 1)), MISALIGNED,
          "aligned to 8");
    EXPECT(access(path, F_OK) != 0);
}

static void refused_regions(EverbyteSpace *space)
{
    EverbyteRegion *region = NULL;
    EverbyteRegionOptions many = {.handlers = 65}, far = {.read_ahead = 17};
    FAILS(everbyte_region_map(BYTES, LIMIT, NULL, NULL, &region), NULL_ARGUMENT, "space is null");
    FAILS(everbyte_region_map(BYTES, LIMIT, space, NULL, NULL), NULL_ARGUMENT, "region is null");
    FAILS(everbyte_region_map(BYTES, LIMIT, (EverbyteSpace *)((char *)space + 1), NULL, &region),
          MISALIGNED, "space is not aligned");
    FAILS(everbyte_region_map(BYTES + 1, LIMIT, space, NULL, &region), BAD_LENGTH, "4096");
    FAILS(everbyte_region_map(0, LIMIT, space, NULL, &region), BAD_LENGTH, "4096");
    FAILS(everbyte_region_map(BYTES, UNIT, space, NULL, &region), LIMIT_TOO_LOW, "too low");
    FAILS(everbyte_region_map(1024 * MIB, LIMIT, space, NULL, &region), SPACE_TOO_SMALL, "slots");
    FAILS(everbyte_region_map(BYTES, LIMIT, space, &many, &region), BAD_ARGUMENT, "handlers");
    FAILS(everbyte_region_map(BYTES, LIMIT, space, &far, &region), BAD_ARGUMENT, "read_ahead");
    EXPECT(region == NULL);
}

static void refused_ranges(EverbyteRegion *region, uint8_t *bytes)
{
    uint64_t found = 7;
    EverbyteStatistics statistics;
    FAILS(everbyte_region_pin(NULL, bytes, UNIT), NULL_ARGUMENT, "region is null");
    FAILS(everbyte_region_pin(region, NULL, UNIT), NULL_ARGUMENT, "address is null");
    FAILS(everbyte_region_pin(region, bytes + 1, UNIT), MISALIGNED, "whole units");
    FAILS(everbyte_region_pin(region, bytes, UNIT - 1), MISALIGNED, "whole units");
    FAILS(everbyte_region_pin(region, bytes - UNIT, UNIT), OUT_OF_RANGE, "leave the region");
    FAILS(everbyte_region_pin(region, bytes + BYTES, UNIT), OUT_OF_RANGE, "leave the region");
    FAILS(everbyte_region_pin(region, bytes + UNIT, UINT64_MAX), OUT_OF_RANGE, "leave the region");
    FAILS(everbyte_region_pin(region, bytes, LIMIT), TOO_MUCH_PINNED, "DRAM limit");
    FAILS(everbyte_region_unpin(region, bytes, UNIT), BAD_PIN, "not pinned");
    FAILS(everbyte_region_prefetch(region, bytes + 8, UNIT, &found), MISALIGNED, "whole units");
    FAILS(everbyte_region_prefetch(region, bytes, UNIT, (uint64_t *)((char *)&found + 1)),
          MISALIGNED, "bytes_in");
    FAILS(everbyte_region_advise(region, bytes, UNIT, 9), BAD_ARGUMENT, "9 is not an advice");
    FAILS(everbyte_region_advise(region, bytes + 5, UNIT, EVERBYTE_DONT_NEED), MISALIGNED,
          "whole units");
    FAILS(everbyte_region_statistics(region, NULL), NULL_ARGUMENT, "statistics is null");
    FAILS(everbyte_region_statistics(NULL, &statistics), NULL_ARGUMENT, "region is null");
    FAILS(everbyte_region_check(NULL), NULL_ARGUMENT, "region is null");
    FAILS(everbyte_region_unmap(NULL), NULL_ARGUMENT, "region is null");
    EXPECT(everbyte_region_address(NULL) == NULL);
    EXPECT(found == 7);
}

static void use(EverbyteRegion *region, uint8_t *bytes)
{
    uint64_t found = 0;
    EverbyteStatistics statistics;
    fill_and_check(bytes);
    GOOD(everbyte_region_statistics(region, &statistics));
    EXPECT(statistics.units_limit == LIMIT / UNIT && statistics.units_out > 0);
    EXPECT(statistics.units_in > 0 && statistics.units_resident <= LIMIT / UNIT + 16);

    GOOD(everbyte_region_prefetch(region, bytes, 16 * UNIT, &found));
    EXPECT(found == 16 * UNIT);
    GOOD(everbyte_region_prefetch(region, bytes, UNIT, NULL));
    GOOD(everbyte_region_advise(region, bytes, UNIT, EVERBYTE_WILL_NEED));

    /* A system call takes a pinned buffer, wherever the rest has gone. */
    GOOD(everbyte_region_pin(region, bytes + BYTES / 2, UNIT));
    for (uint64_t at = 0; at < BYTES; at += UNIT)
        bytes[at] = bytes[at];
    int ends[2];
    EXPECT(pipe(ends) == 0);
    EXPECT(write(ends[1], "from a pipe", 11) == 11);
    EXPECT(read(ends[0], bytes + BYTES / 2, 11) == 11);
    EXPECT(memcmp(bytes + BYTES / 2, "from a pipe", 11) == 0);
    FAILS(everbyte_region_advise(region, bytes + BYTES / 2, UNIT, EVERBYTE_DONT_NEED), PINNED,
          "pinned");
    GOOD(everbyte_region_unpin(region, bytes + BYTES / 2, UNIT));

    GOOD(everbyte_region_advise(region, bytes, BYTES, EVERBYTE_DONT_NEED));
    for (uint64_t at = 0; at < BYTES; at++)
        EXPECT(bytes[at] == 0);
    GOOD(everbyte_region_check(region));
}

/* A child of a fork changes nothing of its parent's region. */
static void forked(EverbyteRegion *region, uint8_t *bytes)
{
    int status;
    for (uint64_t at = 0; at < BYTES; at += UNIT)
        bytes[at] = 1;
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        FAILS(everbyte_region_prefetch(region, bytes, UNIT, NULL), FORKED_CHILD, "forked child");
        FAILS(everbyte_region_pin(region, bytes, UNIT), FORKED_CHILD, "forked child");
        FAILS(everbyte_region_unpin(region, bytes, UNIT), FORKED_CHILD, "forked child");
        FAILS(everbyte_region_advise(region, bytes, UNIT, EVERBYTE_DONT_NEED), FORKED_CHILD,
              "forked child");
        _exit(0);
    }
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
    for (uint64_t at = 0; at < BYTES; at += UNIT)
        EXPECT(bytes[at] == 1);
}

static void *store_for_ever(void *bytes)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) {
        for (uint64_t at = 0; at < BYTES; at += UNIT)
            ((volatile uint8_t *)bytes)[at] = 2;
        pthread_testcancel();
    }
    return NULL;
}

/* A thread that is cancelled at any moment leaves no unit that others wait for. */
static void cancelled(uint8_t *bytes)
{
    pthread_t thread;
    void *result;
    alarm(100);
    for (int round = 0; round < 100; round++) {
        EXPECT(pthread_create(&thread, NULL, store_for_ever, bytes) == 0);
        usleep(500 + round * 10);
        EXPECT(pthread_cancel(thread) == 0);
        EXPECT(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    for (uint64_t at = 0; at < BYTES; at += UNIT)
        EXPECT(bytes[at] == 1 || bytes[at] == 2);
    alarm(0);
}

/* Every byte of the region is the store's own, in the same order, for nothing may be in DRAM. */
static void is_the_store(const uint8_t *bytes, const char *path)
{
    static uint8_t found[PART];
    int file = open(path, O_RDONLY);
    EXPECT(file >= 0);
    for (uint64_t at = 0; at < BYTES; at += PART) {
        EXPECT(pread(file, found, PART, (off_t)at) == (ssize_t)PART);
        EXPECT(memcmp(found, bytes + at, PART) == 0);
    }
    close(file);
}

static void refused_direct(EverbyteSpace *space)
{
    EverbyteRegion *region = NULL;
    EverbyteRegionOptions none = {.direct = 9};
    EverbyteRegionOptions both = {.handlers = 1, .direct = EVERBYTE_DIRECT_STILL};
    FAILS(everbyte_region_map(BYTES, LIMIT, space, &none, &region), BAD_ARGUMENT, "9 is not a direct mode");
    FAILS(everbyte_region_map(BYTES, LIMIT, space, &both, &region), NOT_DIRECT, "other threads");
    EXPECT(region == NULL);
}

static int64_t milliseconds(void)
{
    struct timespec now;
    EXPECT(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Touches the last part, which is the store's, over and over: until something has moved to DRAM, or so long. */
static uint64_t moved_within(const EverbyteRegion *region, volatile uint8_t *bytes, int64_t most_ms)
{
    EverbyteStatistics statistics;
    int64_t start = milliseconds();
    do {
        for (int touch = 0; touch < 1000; touch++)
            bytes[BYTES - PART] ^= 1;
        GOOD(everbyte_region_statistics(region, &statistics));
    } while (statistics.units_in == 0 && milliseconds() - start < most_ms);
    return statistics.units_in;
}

static void use_direct(EverbyteSpace *space, const char *path)
{
    EverbyteRegion *region = NULL;
    EverbyteStatistics statistics;
    EverbyteRegionOptions still = {.direct = EVERBYTE_DIRECT_STILL};
    EverbyteRegionOptions exchanging = {.direct = EVERBYTE_DIRECT_EXCHANGING};
    GOOD(everbyte_region_map(BYTES, LIMIT, space, &still, &region));
    uint8_t *bytes = everbyte_region_address(region);
    EXPECT(bytes != NULL && (uintptr_t)bytes % PART == 0);
    fill_and_check(bytes);
    GOOD(everbyte_region_statistics(region, &statistics));
    EXPECT(statistics.units_resident == LIMIT / UNIT);
    EXPECT(statistics.units_direct == (BYTES - LIMIT) / UNIT);
    EXPECT(moved_within(region, bytes, 500) == 0);
    /* A system call takes what was touched, without a pin, and pins hold whole chunks. */
    int ends[2];
    EXPECT(pipe(ends) == 0);
    EXPECT(write(ends[1], "from a pipe", 11) == 11);
    EXPECT(read(ends[0], bytes + BYTES - UNIT, 11) == 11);
    EXPECT(memcmp(bytes + BYTES - UNIT, "from a pipe", 11) == 0);
    GOOD(everbyte_region_pin(region, bytes + BYTES - UNIT, UNIT));
    FAILS(everbyte_region_advise(region, bytes + BYTES - PART, UNIT, EVERBYTE_DONT_NEED), PINNED,
          "pinned");
    GOOD(everbyte_region_unpin(region, bytes + BYTES - UNIT, UNIT));
    GOOD(everbyte_region_advise(region, bytes, BYTES, EVERBYTE_DONT_NEED));
    for (uint64_t at = 0; at < BYTES; at++)
        EXPECT(bytes[at] == 0);
    GOOD(everbyte_region_check(region));
    GOOD(everbyte_region_unmap(region));

    GOOD(everbyte_region_map(BYTES, 0, space, &still, &region));
    bytes = everbyte_region_address(region);
    fill_and_check(bytes);
    is_the_store(bytes, path);
    GOOD(everbyte_region_unmap(region));

    GOOD(everbyte_region_map(BYTES, LIMIT, space, &exchanging, &region));
    bytes = everbyte_region_address(region);
    fill_and_check(bytes);
    EXPECT(moved_within(region, bytes, 60000) > 0);
    GOOD(everbyte_region_check(region));
    GOOD(everbyte_region_unmap(region));
}

int main(int count, char **words)
{
    EverbyteSpace *space = NULL;
    EverbyteRegion *region = NULL;
    EverbyteRegionOptions copies = {.read_ahead = 1, .always_copies_out = 1};
    if (count != 2)
        return 2;
    EXPECT(everbyte_error()[0] == 0);
    refused_spaces(words[1]);
    GOOD(everbyte_space_create(words[1], BYTES, &space));
    refused_regions(space);
    GOOD(everbyte_region_map(BYTES, LIMIT, space, NULL, &region));
    uint8_t *bytes = everbyte_region_address(region);
    EXPECT(bytes != NULL && (uintptr_t)bytes % 65536 == 0);
    refused_ranges(region, bytes);
    use(region, bytes);
    forked(region, bytes);
    cancelled(bytes);
    GOOD(everbyte_region_unmap(region));

    refused_direct(space);
    use_direct(space, words[1]);

    GOOD(everbyte_region_map(BYTES, LIMIT, space, &copies, &region));
    /* The region keeps the space. */
    GOOD(everbyte_space_close(space));
    fill_and_check(everbyte_region_address(region));
    GOOD(everbyte_region_unmap(region));
    puts("good");
    return 0;
}
