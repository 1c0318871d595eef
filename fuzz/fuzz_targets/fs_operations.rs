//! libFuzzer's entry to `everbyte_fuzz::fs_operations`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| everbyte_fuzz::fs_operations(bytes));
