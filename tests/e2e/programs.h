/* What the test programs have in common. */

#include <stdio.h>
#include <stdlib.h>

#define die(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

/* MiB of the program's own memory that are in DRAM; negative if the kernel does not say. */
static long anonymous_mib(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %ld", &kib);
    if (status)
        fclose(status);
    return kib >> 10;
}
