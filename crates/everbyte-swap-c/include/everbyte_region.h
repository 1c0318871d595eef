/* Regions of memory that page to storage-class memory. Made by cbindgen. */

#ifndef EVERBYTE_REGION_H
#define EVERBYTE_REGION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// Advice: the range is needed soon.
#define EVERBYTE_WILL_NEED 0

// Advice: the range's contents are not needed, and the range is set to zero.
#define EVERBYTE_DONT_NEED 1

// Direct mode with exchanges: hot chunks in the store and cold ones in DRAM change places. A
// thread of the region periodically makes a few chunks inaccessible, for at most 10 ms, and
// measures the time to their first access.
#define EVERBYTE_DIRECT_EXCHANGING 1

// Direct mode with chunks fixed at the place of their first access, except by
// `everbyte_region_prefetch`. System calls accept bytes accessed once.
#define EVERBYTE_DIRECT_STILL 2

// The outcome of a call. `everbyte_error` has the words to it.
typedef enum EverbyteStatus {
  // It is done.
  EVERBYTE_STATUS_OK = 0,
  // A required pointer is null.
  EVERBYTE_STATUS_NULL_ARGUMENT = 1,
  // A pointer is not aligned to its type, or a range has partial units of 4096 bytes.
  EVERBYTE_STATUS_MISALIGNED = 2,
  // An argument has an invalid value.
  EVERBYTE_STATUS_BAD_ARGUMENT = 3,
  // A range leaves the region.
  EVERBYTE_STATUS_OUT_OF_RANGE = 4,
  // The length is invalid for a region.
  EVERBYTE_STATUS_BAD_LENGTH = 5,
  // The DRAM limit is too low.
  EVERBYTE_STATUS_LIMIT_TOO_LOW = 6,
  // The space has too few slots for the region, or cannot be had.
  EVERBYTE_STATUS_SPACE_TOO_SMALL = 7,
  // More would be pinned than three quarters of the DRAM limit.
  EVERBYTE_STATUS_TOO_MUCH_PINNED = 8,
  // Some of the range is pinned.
  EVERBYTE_STATUS_PINNED = 9,
  // Some of the range is not pinned, or is pinned as often as it can be.
  EVERBYTE_STATUS_BAD_PIN = 10,
  // A part of the range is in an unreadable slot.
  EVERBYTE_STATUS_UNREADABLE = 11,
  // The system has no memory.
  EVERBYTE_STATUS_NO_MEMORY = 12,
  // The store lost written bytes. The region evicts no further units.
  EVERBYTE_STATUS_STORE_FAILED = 13,
  // The store has no free slot: DRAM beyond the limit is used.
  EVERBYTE_STATUS_STORE_FULL = 14,
  // The region's userfaultfd was closed.
  EVERBYTE_STATUS_DESCRIPTOR_LOST = 15,
  // A setting of the system forbids userfaultfd.
  EVERBYTE_STATUS_FORBIDDEN = 16,
  // The kernel's userfaultfd lacks a feature needed by regions.
  EVERBYTE_STATUS_UNSUPPORTED = 17,
  // The process has as many regions as it can have.
  EVERBYTE_STATUS_TOO_MANY = 18,
  // The system, or a pool's server, refused.
  EVERBYTE_STATUS_SYSTEM = 19,
  // Direct mode does not support the request.
  EVERBYTE_STATUS_NOT_DIRECT = 20,
  // Direct mode needs a second mapping of the store's memory, and the store cannot have one.
  EVERBYTE_STATUS_NOT_MAPPABLE = 21,
  // The system keeps pages of the region in DRAM as if they were locked. The region evicts no
  // further units.
  EVERBYTE_STATUS_LOCKED = 22,
  // This process is a forked child, and the region is its parent's.
  EVERBYTE_STATUS_FORKED_CHILD = 23,
} EverbyteStatus;

// Memory that pages to the slots of a space. Its DRAM use stays within a limit.
//
// Thread-safe. A forked child does not have it: an access there is a SIGSEGV. The program must not
// use madvise, mremap, munmap or mprotect on it.
typedef struct EverbyteRegion EverbyteRegion;

// Slots behind regions: in a file, or in memory lent by a pool's server.
typedef struct EverbyteSpace EverbyteSpace;

// Options of a region. All zeroes are the defaults.
typedef struct EverbyteRegionOptions {
  // Number of threads resolving faults, so system calls accept any byte of the region; needs a
  // privilege. 0: the faulting thread resolves its fault in a handler of SIGBUS. Then a system
  // call on bytes outside DRAM fails with EFAULT unless they are pinned.
  uint32_t handlers;
  // Units of 4096 bytes filled together for a stream of faults, 1 to 16. 0: 16.
  uint32_t read_ahead;
  // Not 0: pages are never write-protected, and always copied out. For stores nearly as fast as DRAM.
  uint32_t always_copies_out;
  // `EVERBYTE_DIRECT_EXCHANGING` or `EVERBYTE_DIRECT_STILL`: chunks of 2 MiB outside DRAM are
  // the store's own memory. Loads and stores access them without a fault after the first access.
  // The store must be a file on tmpfs or DAX, or lent by a pool's server. Faults arrive as
  // SIGSEGV; any DRAM limit is valid, including 0, in steps of 2 MiB; a pin keeps whole chunks
  // in place, in DRAM or not; `handlers` must be 0. 0: the region pages.
  uint32_t direct;
} EverbyteRegionOptions;

// Counters since the mapping of a region, and its present contents.
typedef struct EverbyteStatistics {
  // Maximum number of units of 4096 bytes in DRAM.
  uint64_t units_limit;
  // Units in DRAM.
  uint64_t units_resident;
  // Units filled above the limit because no unit could be evicted.
  uint64_t units_over_limit;
  // Units brought in from slots.
  uint64_t units_in;
  // Units copied to slots.
  uint64_t units_out;
  // Units of a region in direct mode in the store's own memory.
  uint64_t units_direct;
  // Free slots of the space.
  uint64_t slots_free;
} EverbyteStatistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The reason for the failure of this thread's last failed call, in English; empty before. Valid
// until this thread's next failed call, and never null.
const char *everbyte_error(void);

// Creates a file of `bytes` bytes at `path`, and a space in it. The path must not exist. On tmpfs,
// DAX or a disk; all of the file is allocated.
//
// Requires:
// `path` is null or points to text ending with a 0; `space` is null or points to space for a
// pointer.
enum EverbyteStatus everbyte_space_create(const char *path,
                                          uint64_t bytes,
                                          struct EverbyteSpace **space);

// Opens a space in an existing file or device and overwrites its bytes.
//
// Requires:
// As `everbyte_space_create`.
enum EverbyteStatus everbyte_space_open(const char *path, struct EverbyteSpace **space);

// Borrows a space of at least `bytes` bytes of the swap volume `volume` from the server of the
// pool at `pool`. The loan ends with the space and its regions, or with the process.
//
// Requires:
// `pool` and `volume` are null or point to text ending with a 0; `space` is null or points to
// space for a pointer.
enum EverbyteStatus everbyte_space_borrow(const char *pool,
                                          const char *volume,
                                          uint64_t bytes,
                                          struct EverbyteSpace **space);

// Closes a space. Its regions keep it until they are unmapped.
//
// Requires:
// `space` is null or was made by this library and not closed yet.
enum EverbyteStatus everbyte_space_close(struct EverbyteSpace *space);

// Maps `bytes` bytes, a positive multiple of 4096, with at most `dram_limit` bytes in DRAM.
// Outside direct mode the limit is at least 256 KiB. Reserves slots in `space` for the rest and a
// small margin. `options` may be null.
//
// Requires:
// `space` is null or an open space; `options` is null or points to options; `region` is null or
// points to space for a pointer.
enum EverbyteStatus everbyte_region_map(uint64_t bytes,
                                        uint64_t dram_limit,
                                        const struct EverbyteSpace *space,
                                        const struct EverbyteRegionOptions *options,
                                        struct EverbyteRegion **region);

// Unmaps a region: its bytes are lost, and its slots are free.
//
// Requires:
// `region` is null or a mapped region, and its bytes are unused from now on.
enum EverbyteStatus everbyte_region_unmap(struct EverbyteRegion *region);

// The first byte of a region, aligned to 64 KiB, in direct mode to 2 MiB; null if `region` is null or misaligned.
//
// Requires:
// `region` is null or a mapped region.
void *everbyte_region_address(const struct EverbyteRegion *region);

// Brings whole units from `at` on into DRAM, as far as the DRAM limit allows. Stores the number of
// the range's bytes in DRAM at `bytes_in`, unless it is null.
//
// Requires:
// `region` is null or a mapped region; `bytes_in` is null or points to space for a number.
enum EverbyteStatus everbyte_region_prefetch(const struct EverbyteRegion *region,
                                             const void *at,
                                             uint64_t bytes,
                                             uint64_t *bytes_in);

// Brings whole units into DRAM, writable, and keeps them there until they are unpinned as often:
// for buffers of system calls and devices. In direct mode they stay in place, in DRAM or not.
//
// Requires:
// `region` is null or a mapped region.
enum EverbyteStatus everbyte_region_pin(const struct EverbyteRegion *region,
                                        const void *at,
                                        uint64_t bytes);

// Takes back one pin of the same range.
//
// Requires:
// `region` is null or a mapped region.
enum EverbyteStatus everbyte_region_unpin(const struct EverbyteRegion *region,
                                          const void *at,
                                          uint64_t bytes);

// Announces the use of whole units: `EVERBYTE_WILL_NEED` or `EVERBYTE_DONT_NEED`.
//
// Requires:
// `region` is null or a mapped region; no code relies on the contents of a range not needed.
enum EverbyteStatus everbyte_region_advise(const struct EverbyteRegion *region,
                                           const void *at,
                                           uint64_t bytes,
                                           uint32_t advice);

// Stores a region's counters at `statistics`.
//
// Requires:
// `region` is null or a mapped region; `statistics` is null or points to space for them.
enum EverbyteStatus everbyte_region_statistics(const struct EverbyteRegion *region,
                                               struct EverbyteStatistics *statistics);

// Checks that a region can page. If not, the status names the failure.
//
// Requires:
// `region` is null or a mapped region.
enum EverbyteStatus everbyte_region_check(const struct EverbyteRegion *region);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EVERBYTE_REGION_H */
