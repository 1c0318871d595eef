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

// Advice: what the range holds is not needed any more, and it is to hold zeroes.
#define EVERBYTE_DONT_NEED 1

// Direct mode whose hot chunks and cold ones change places between the store and DRAM: a thread of the region's makes
// a few of them inaccessible now and then, for at most 10 ms, to see how soon they are touched.
#define EVERBYTE_DIRECT_EXCHANGING 1

// Direct mode whose chunks stay where they were first touched, but for `everbyte_region_prefetch`. System calls may be
// given what was touched once.
#define EVERBYTE_DIRECT_STILL 2

// The outcome of a call. `everbyte_error` has the words to it.
typedef enum EverbyteStatus {
  // It is done.
  EVERBYTE_STATUS_OK = 0,
  // A pointer that must not be null is.
  EVERBYTE_STATUS_NULL_ARGUMENT = 1,
  // A pointer is not aligned to its type, or a range is not of whole units of 4096 bytes.
  EVERBYTE_STATUS_MISALIGNED = 2,
  // An argument has a value that it cannot have.
  EVERBYTE_STATUS_BAD_ARGUMENT = 3,
  // A range leaves the region.
  EVERBYTE_STATUS_OUT_OF_RANGE = 4,
  // No region can have that length.
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
  // Some of the range is in a slot that cannot be read.
  EVERBYTE_STATUS_UNREADABLE = 11,
  // The system has no memory.
  EVERBYTE_STATUS_NO_MEMORY = 12,
  // The store lost what was written to it: nothing is evicted any more.
  EVERBYTE_STATUS_STORE_FAILED = 13,
  // The store has no free slot: DRAM beyond the limit is used.
  EVERBYTE_STATUS_STORE_FULL = 14,
  // The region's userfaultfd was closed.
  EVERBYTE_STATUS_DESCRIPTOR_LOST = 15,
  // A setting of the system forbids userfaultfd.
  EVERBYTE_STATUS_FORBIDDEN = 16,
  // The kernel's userfaultfd lacks what regions need.
  EVERBYTE_STATUS_UNSUPPORTED = 17,
  // The process has as many regions as it can have.
  EVERBYTE_STATUS_TOO_MANY = 18,
  // The system, or a pool's server, refused.
  EVERBYTE_STATUS_SYSTEM = 19,
  // A region in direct mode cannot have or do that.
  EVERBYTE_STATUS_NOT_DIRECT = 20,
  // The store's memory cannot be mapped a second time, which direct mode needs.
  EVERBYTE_STATUS_NOT_MAPPABLE = 21,
  // The system keeps pages of the region in DRAM, as if they were locked: nothing is evicted any more.
  EVERBYTE_STATUS_LOCKED = 22,
  // This process is a forked child, and the region is its parent's.
  EVERBYTE_STATUS_FORKED_CHILD = 23,
} EverbyteStatus;

// Memory that pages to the slots of a space: at most its DRAM limit is in DRAM at a time.
//
// Threads may use it at once. A child of a fork does not have it: touching it there is a SIGSEGV. The
// program must not use madvise, mremap, munmap or mprotect on it.
typedef struct EverbyteRegion EverbyteRegion;

// Slots that regions page to: of a file, or of memory that a pool's server has lent.
typedef struct EverbyteSpace EverbyteSpace;

// Options of a region. All zeroes are the defaults.
typedef struct EverbyteRegionOptions {
  // Threads that resolve faults, so that system calls may be given any byte of the region; takes a
  // privilege. 0: the thread that faults does, in a handler of SIGBUS; a system call on bytes that are
  // not in DRAM fails with EFAULT unless they are pinned.
  uint32_t handlers;
  // Units of 4096 bytes that are filled at once where faults come in a stream, 1 to 16. 0: 16.
  uint32_t read_ahead;
  // Not 0: pages are never write-protected, and always copied out. For stores nearly as fast as DRAM.
  uint32_t always_copies_out;
  // `EVERBYTE_DIRECT_EXCHANGING` or `EVERBYTE_DIRECT_STILL`: what is not in DRAM is the store's own memory, in chunks of 2
  // MiB, where loads and stores go without a fault once a chunk was touched. For stores that are files on tmpfs or
  // DAX, or lent by a pool's server. Faults come as SIGSEGV; any DRAM limit will do, 0 too, and counts in
  // 2 MiB; pins keep whole chunks where they are, in DRAM or not; `handlers` must be 0. 0: the region pages.
  uint32_t direct;
} EverbyteRegionOptions;

// Counters since a region was mapped, and what it holds now.
typedef struct EverbyteStatistics {
  // Units of 4096 bytes that may be in DRAM.
  uint64_t units_limit;
  // Units that are in DRAM.
  uint64_t units_resident;
  // Units that went in above the limit, because nothing could be evicted.
  uint64_t units_over_limit;
  // Units brought in from slots.
  uint64_t units_in;
  // Units copied to slots.
  uint64_t units_out;
  // Units of a region in direct mode that are the store's own memory.
  uint64_t units_direct;
  // Slots of the space that are free.
  uint64_t slots_free;
} EverbyteStatistics;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The reason for which this thread's last call that failed did, in English; empty before. Valid
// until this thread's next call that fails, and never null.
const char *everbyte_error(void);

// Makes a file of `bytes` bytes at `path`, which must not be there yet, and a space of it. On tmpfs,
// DAX or a disk; all of it is allocated.
//
// Requires:
// `path` is null or points to text that ends with a 0; `space` is null or points to room for a
// pointer.
enum EverbyteStatus everbyte_space_create(const char *path,
                                          uint64_t bytes,
                                          struct EverbyteSpace **space);

// A space of an existing file or device, whose bytes are overwritten.
//
// Requires:
// As `everbyte_space_create`.
enum EverbyteStatus everbyte_space_open(const char *path, struct EverbyteSpace **space);

// A space of at least `bytes` bytes of the swap volume `volume`, lent by the server of the pool at
// `pool`. They are lent until the space and its regions are gone, or the process has ended.
//
// Requires:
// `pool` and `volume` are null or point to text that ends with a 0; `space` is null or points to room
// for a pointer.
enum EverbyteStatus everbyte_space_borrow(const char *pool,
                                          const char *volume,
                                          uint64_t bytes,
                                          struct EverbyteSpace **space);

// Gives a space up. Regions that were mapped with it keep it until they are unmapped.
//
// Requires:
// `space` is null or was made by this library and not closed yet.
enum EverbyteStatus everbyte_space_close(struct EverbyteSpace *space);

// Maps `bytes` bytes, a positive multiple of 4096, of which at most `dram_limit` are in DRAM, at least 256 KiB
// unless the region is in direct mode. The rest, and a little more, is reserved in `space`. `options` may be null.
//
// Requires:
// `space` is null or a space that is not closed; `options` is null or points to options; `region` is
// null or points to room for a pointer.
enum EverbyteStatus everbyte_region_map(uint64_t bytes,
                                        uint64_t dram_limit,
                                        const struct EverbyteSpace *space,
                                        const struct EverbyteRegionOptions *options,
                                        struct EverbyteRegion **region);

// Unmaps a region: its bytes are gone, and its slots free.
//
// Requires:
// `region` is null or a region that is not unmapped yet, and nobody touches its bytes any more.
enum EverbyteStatus everbyte_region_unmap(struct EverbyteRegion *region);

// The first byte of a region, aligned to 64 KiB, in direct mode to 2 MiB; null if `region` is null or misaligned.
//
// Requires:
// `region` is null or a region that is not unmapped.
void *everbyte_region_address(const struct EverbyteRegion *region);

// Brings in whole units from `at` on, as far as the DRAM limit has room. Stores at `bytes_in`, unless it is
// null, how many bytes of the range are in.
//
// Requires:
// `region` is null or a region that is not unmapped; `bytes_in` is null or points to room for a number.
enum EverbyteStatus everbyte_region_prefetch(const struct EverbyteRegion *region,
                                             const void *at,
                                             uint64_t bytes,
                                             uint64_t *bytes_in);

// Brings whole units in and keeps them in DRAM, writable, until they are unpinned as often: for buffers
// of system calls and devices. In direct mode they stay where they are, in DRAM or not.
//
// Requires:
// `region` is null or a region that is not unmapped.
enum EverbyteStatus everbyte_region_pin(const struct EverbyteRegion *region,
                                        const void *at,
                                        uint64_t bytes);

// Takes back one pin of the same range.
//
// Requires:
// `region` is null or a region that is not unmapped.
enum EverbyteStatus everbyte_region_unpin(const struct EverbyteRegion *region,
                                          const void *at,
                                          uint64_t bytes);

// Tells what is to become of whole units: `EVERBYTE_WILL_NEED` or `EVERBYTE_DONT_NEED`.
//
// Requires:
// `region` is null or a region that is not unmapped; nobody relies on what a range holds that is not
// needed.
enum EverbyteStatus everbyte_region_advise(const struct EverbyteRegion *region,
                                           const void *at,
                                           uint64_t bytes,
                                           uint32_t advice);

// Stores a region's counters at `statistics`.
//
// Requires:
// `region` is null or a region that is not unmapped; `statistics` is null or points to room for them.
enum EverbyteStatus everbyte_region_statistics(const struct EverbyteRegion *region,
                                               struct EverbyteStatistics *statistics);

// Checks that a region pages as it should; if not, the status says what is wrong.
//
// Requires:
// `region` is null or a region that is not unmapped.
enum EverbyteStatus everbyte_region_check(const struct EverbyteRegion *region);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EVERBYTE_REGION_H */
